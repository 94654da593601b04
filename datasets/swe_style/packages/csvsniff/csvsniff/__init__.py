"""Dialects of CSV files."""

from .dialect import Dialect
from .reader import CsvError, read
from .sniffer import sniff
from .types import column_types, convert, read_typed

__all__ = ["CsvError", "Dialect", "column_types", "convert", "read", "read_typed", "sniff"]
