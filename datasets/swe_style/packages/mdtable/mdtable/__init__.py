"""Markdown tables that line up."""

from .document import format_text
from .parse import TableError, parse
from .render import render
from .table import Table
from .width import pad, shorten, width

__all__ = ["Table", "TableError", "format_text", "pad", "parse", "render", "shorten", "width"]
