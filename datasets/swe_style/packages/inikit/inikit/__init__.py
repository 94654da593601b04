"""Read, change and write INI files."""

from .document import Document, Section
from .errors import IniError, InterpolationError, ParseError
from .expand import expand
from .parser import load, loads
from .writer import dump, dumps

__all__ = [
    "Document",
    "IniError",
    "InterpolationError",
    "ParseError",
    "Section",
    "dump",
    "dumps",
    "expand",
    "load",
    "loads",
]
