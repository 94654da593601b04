"""Ranges of numbers with values."""

from .mapping import SpanMap
from .sets import SpanSet
from .span import Span

__all__ = ["Span", "SpanMap", "SpanSet"]
