"""Units, dimensions and conversions."""

from .dimension import Dimension
from .expression import UnitError, parse_unit
from .quantity import Quantity, convert
from .registry import UNITS, Unit

__all__ = ["Dimension", "Quantity", "UNITS", "Unit", "UnitError", "convert", "parse_unit"]
