"""One half-open range."""

from typing import NamedTuple


class Span(NamedTuple):
    """The numbers `start <= x < end`."""

    start: float
    end: float

    @classmethod
    def of(cls, key):
        """A span from a slice, which must have both ends and no step."""
        if not isinstance(key, slice):
            raise TypeError(f"expected start:end, got {key!r}")
        if key.step is not None:
            raise ValueError(f"a step is not allowed, got {key.step!r}")
        if key.start is None or key.stop is None:
            raise ValueError("both ends of a range must be given")
        if not key.start < key.stop:
            raise ValueError(f"an empty range: {key.start!r} is not below {key.stop!r}")
        return cls(key.start, key.stop)

    @property
    def length(self):
        """How much the span covers."""
        return self.end - self.start

    def __contains__(self, point):
        return self.start <= point < self.end

    def overlap(self, other):
        """The common part, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Span(start, end) if start < end else None

    def touches(self, other):
        """Whether the union is one span: they overlap or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end
