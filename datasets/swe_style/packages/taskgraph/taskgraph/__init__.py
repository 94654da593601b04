"""Dependency graphs of tasks."""

from .graph import CycleError, TaskGraph, UnknownTaskError
from .planner import Plan, Slot, plan
from .runner import Outcome, Runner

__all__ = ["CycleError", "Outcome", "Plan", "Runner", "Slot", "TaskGraph", "UnknownTaskError", "plan"]
