"""Numbers with units."""

from .expression import UnitError, parse_unit


def convert(value, source, target):
    """A value in another unit of the same dimension."""
    have, want = parse_unit(source), parse_unit(target)
    if have.dimension != want.dimension:
        raise UnitError(f"cannot convert {source} ({have.dimension}) to {target} ({want.dimension})")
    return (value * have.factor + have.offset - want.offset) / want.factor


class Quantity:
    """A number with a unit, which is kept as it was written."""

    def __init__(self, value, unit=""):
        self.value = value
        self.unit = unit
        self.parsed = parse_unit(unit)

    def to(self, unit):
        """The same quantity in another unit."""
        return Quantity(convert(self.value, self.unit, unit), unit)

    def __repr__(self):
        return f"{self.value:g} {self.unit}".rstrip()

    def _base(self):
        """The value in base units."""
        return self.value * self.parsed.factor + self.parsed.offset

    def _check(self, other):
        if self.parsed.dimension != other.parsed.dimension:
            raise UnitError(f"{self.unit} ({self.parsed.dimension}) and {other.unit} ({other.parsed.dimension}) differ")

    def __add__(self, other):
        self._check(other)
        return Quantity(self.value + other.value * other.parsed.factor / self.parsed.factor, self.unit)

    def __sub__(self, other):
        self._check(other)
        return Quantity(self.value - other.value * other.parsed.factor / self.parsed.factor, self.unit)

    def __mul__(self, other):
        if isinstance(other, Quantity):
            return Quantity(self.value * other.value, combine(self.unit, "*", other.unit))
        return Quantity(self.value * other, self.unit)

    __rmul__ = __mul__

    def __truediv__(self, other):
        if isinstance(other, Quantity):
            return Quantity(self.value / other.value, combine(self.unit, "/", other.unit))
        return Quantity(self.value / other, self.unit)

    def __eq__(self, other):
        if not isinstance(other, Quantity) or self.parsed.dimension != other.parsed.dimension:
            return False
        return abs(self._base() - other._base()) <= 1e-12 * max(abs(self._base()), abs(other._base()))

    def __lt__(self, other):
        self._check(other)
        return self._base() < other._base()


def combine(left, sign, right):
    """The text of a product or quotient of two units."""
    if sign == "/" and any(c in right for c in "*/ "):
        right = f"({right})"
    if not right:
        return left
    if not left:
        return right if sign == "*" else f"({right})^-1"
    return f"{left}{sign}{right}"
