"""Ranges to values."""

from bisect import bisect_left, bisect_right

from .span import Span


class SpanMap:
    """Disjoint spans with values, in order. Lookups take logarithmic time."""

    def __init__(self, items=()):
        self._starts = []
        self._ends = []
        self._values = []
        for start, end, value in items:
            self[start:end] = value

    def __iter__(self):
        return iter(list(zip(self._starts, self._ends, self._values)))

    def __len__(self):
        return len(self._starts)

    def __bool__(self):
        return bool(self._starts)

    def __eq__(self, other):
        return isinstance(other, SpanMap) and list(self) == list(other)

    def __repr__(self):
        inner = ", ".join(f"[{start}, {end}): {value!r}" for start, end, value in self)
        return f"SpanMap({{{inner}}})"

    def _index(self, point):
        """Position of the span that holds a point, or None."""
        place = bisect_right(self._starts, point) - 1
        if place >= 0 and point < self._ends[place]:
            return place
        return None

    def __contains__(self, point):
        return self._index(point) is not None

    def __getitem__(self, point):
        place = self._index(point)
        if place is None:
            raise KeyError(point)
        return self._values[place]

    def get(self, point, default=None):
        """The value at a point, or the default."""
        place = self._index(point)
        return default if place is None else self._values[place]

    def __setitem__(self, key, value):
        span = Span.of(key)
        self._cut(span)
        place = bisect_left(self._starts, span.start)
        self._insert(place, span, value)
        self._join(place)

    def __delitem__(self, key):
        self._cut(Span.of(key))

    def _insert(self, place, span, value):
        self._starts.insert(place, span.start)
        self._ends.insert(place, span.end)
        self._values.insert(place, value)

    def _remove(self, first, last):
        del self._starts[first:last]
        del self._ends[first:last]
        del self._values[first:last]

    def _touched(self, span):
        """Positions of the first and one past the last span that overlap the given one."""
        return bisect_right(self._ends, span.start), bisect_left(self._starts, span.end)

    def _cut(self, span):
        """Make room: what lies inside goes, what overlaps an end keeps its outer part."""
        first, last = self._touched(span)
        if first >= last:
            return
        left = (self._starts[first], self._values[first])
        right = (self._ends[last - 1], self._values[last - 1])
        self._remove(first, last)
        if right[0] > span.end:
            self._insert(first, Span(span.end, right[0]), right[1])
        if left[0] < span.start:
            self._insert(first, Span(left[0], span.start), left[1])

    def _join(self, place):
        """Join a span with the neighbours that touch it and have an equal value."""
        after = place + 1
        if after < len(self) and self._starts[after] == self._ends[place] and self._values[after] == self._values[place]:
            self._ends[place] = self._ends[after]
            self._remove(after, after + 1)
        before = place - 1
        if before >= 0 and self._ends[before] == self._starts[place] and self._values[before] == self._values[place]:
            self._ends[before] = self._ends[place]
            self._remove(place, place + 1)

    def overlapping(self, start, end):
        """`(start, end, value)` of every part inside a range, cut to it."""
        span = Span.of(slice(start, end))
        first, last = self._touched(span)
        parts = zip(self._starts[first:last], self._ends[first:last], self._values[first:last])
        return [(max(s, span.start), min(e, span.end), value) for s, e, value in parts]

    def gaps(self, start, end):
        """Spans inside a range that have no value."""
        result = []
        at = start
        for s, e, _ in self.overlapping(start, end):
            if s > at:
                result.append(Span(at, s))
            at = e
        if at < end:
            result.append(Span(at, end))
        return result

    def total(self, start, end, weight=lambda value: value):
        """Sum over a range of length times `weight(value)`: the integral of the mapping."""
        return sum((e - s) * weight(value) for s, e, value in self.overlapping(start, end))
