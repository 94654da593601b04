"""Applying patches, also to texts that have changed since."""

from .unified import parse, split_lines


class PatchError(ValueError):
    """A hunk that does not fit."""

    def __init__(self, number, hunk):
        super().__init__(f"hunk {number} ({hunk.header()}) does not fit anywhere")
        self.number = number


def apply(text, patch):
    """The text with a patch applied."""
    lines = split_lines(text)
    shift = 0
    floor = 0
    for number, hunk in enumerate(parse(patch), 1):
        expected = hunk.old_start - (1 if hunk.old_lines else 0) + shift
        place = find(lines, hunk.old_lines, expected, floor)
        if place is None:
            raise PatchError(number, hunk)
        lines[place : place + len(hunk.old_lines)] = hunk.new_lines
        # How far the rest has moved: by lines added here, and by where the hunk was found.
        shift += len(hunk.new_lines) - len(hunk.old_lines) + place - expected
        floor = place + len(hunk.new_lines)
    return "".join(lines)


def find(lines, wanted, expected, floor):
    """The place nearest to the expected one where the wanted lines are, not before `floor`."""
    last = len(lines) - len(wanted)
    for distance in range(max(expected, last - expected, 0) + len(lines) + 1):
        for place in (expected - distance, expected + distance):
            if floor <= place <= last and lines[place : place + len(wanted)] == wanted:
                return place
    return None
