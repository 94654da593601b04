"""Sets of numbers made of ranges."""

from .mapping import SpanMap
from .span import Span


class SpanSet:
    """A union of spans, kept disjoint, sorted, and joined where they touch."""

    def __init__(self, spans=()):
        self._map = SpanMap()
        for start, end in spans:
            self.add(start, end)

    def add(self, start, end):
        """Add the numbers from start to end."""
        self._map[start:end] = True

    def remove(self, start, end):
        """Take the numbers from start to end away."""
        del self._map[start:end]

    def __iter__(self):
        return iter([Span(start, end) for start, end, _ in self._map])

    def __len__(self):
        return len(self._map)

    def __contains__(self, point):
        return point in self._map

    def __eq__(self, other):
        return isinstance(other, SpanSet) and list(self) == list(other)

    def __repr__(self):
        return "SpanSet(" + " ".join(f"[{start}, {end})" for start, end in self) + ")"

    @property
    def length(self):
        """Total length of all spans."""
        return sum(span.length for span in self)

    def __or__(self, other):
        result = SpanSet(self)
        for start, end in other:
            result.add(start, end)
        return result

    def __sub__(self, other):
        result = SpanSet(self)
        for start, end in other:
            result.remove(start, end)
        return result

    def __and__(self, other):
        result = SpanSet()
        mine, theirs = list(self), list(other)
        i = j = 0
        while i < len(mine) and j < len(theirs):
            common = mine[i].overlap(theirs[j])
            if common is not None:
                result.add(*common)
            if mine[i].end <= theirs[j].end:
                i += 1
            else:
                j += 1
        return result

    def __xor__(self, other):
        return (self - other) | (other - self)
