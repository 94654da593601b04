"""Dimensions: products of powers of base quantities."""

BASES = ("length", "mass", "time", "current", "temperature", "amount")


class Dimension:
    """Exponents of the base quantities, in the order of BASES."""

    def __init__(self, exponents=(0,) * len(BASES)):
        self.exponents = tuple(exponents)

    @classmethod
    def base(cls, name):
        """The dimension of a base quantity."""
        return cls(tuple(int(base == name) for base in BASES))

    def __mul__(self, other):
        return Dimension(a + b for a, b in zip(self.exponents, other.exponents))

    def __truediv__(self, other):
        return Dimension(a - b for a, b in zip(self.exponents, other.exponents))

    def __pow__(self, power):
        return Dimension(a * power for a in self.exponents)

    def __eq__(self, other):
        return isinstance(other, Dimension) and self.exponents == other.exponents

    def __hash__(self):
        return hash(self.exponents)

    def __str__(self):
        parts = []
        for name, exponent in zip(BASES, self.exponents):
            if exponent:
                parts.append(name if exponent == 1 else f"{name}^{exponent}")
        return " ".join(parts) or "dimensionless"

    __repr__ = __str__
