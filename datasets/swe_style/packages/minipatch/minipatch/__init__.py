"""Diffs and patches of lines."""

from .apply import PatchError, apply
from .lcs import Edit, edits
from .unified import Hunk, parse, reverse, unified

__all__ = ["Edit", "Hunk", "PatchError", "apply", "edits", "parse", "reverse", "unified"]
