"""The shortest list of edits between two sequences (Myers 1986)."""

from typing import NamedTuple


class Edit(NamedTuple):
    """`op` is ` ` (in both), `-` (only in the old) or `+` (only in the new)."""

    op: str
    line: str


def edits(old, new):
    """Edits that turn one list of lines into the other, as few as possible; removals come before additions."""
    prefix = 0
    while prefix < min(len(old), len(new)) and old[prefix] == new[prefix]:
        prefix += 1
    suffix = 0
    most = min(len(old), len(new)) - prefix
    while suffix < most and old[len(old) - 1 - suffix] == new[len(new) - 1 - suffix]:
        suffix += 1
    middle = shortest(old[prefix : len(old) - suffix], new[prefix : len(new) - suffix])
    head = [Edit(" ", line) for line in old[:prefix]]
    tail = [Edit(" ", line) for line in old[len(old) - suffix :]]
    return head + removals_first(middle) + tail


def shortest(old, new):
    """Myers' greedy search over the diagonals, then the way back."""
    furthest = {1: 0}
    trace = []
    for depth in range(len(old) + len(new) + 1):
        trace.append(dict(furthest))
        for k in range(-depth, depth + 1, 2):
            if k == -depth or (k != depth and furthest[k - 1] < furthest[k + 1]):
                x = furthest[k + 1]
            else:
                x = furthest[k - 1] + 1
            y = x - k
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(old) and y >= len(new):
                return walk_back(old, new, trace)
    raise AssertionError("the search always reaches the end")


def walk_back(old, new, trace):
    """The edits along the path that the search found."""
    result = []
    x, y = len(old), len(new)
    for depth in range(len(trace) - 1, -1, -1):
        furthest = trace[depth]
        k = x - y
        if k == -depth or (k != depth and furthest.get(k - 1, -1) < furthest.get(k + 1, -1)):
            before = k + 1
        else:
            before = k - 1
        from_x = furthest[before] if depth else 0
        from_y = from_x - before if depth else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            result.append(Edit(" ", old[x]))
        if depth:
            if x == from_x:
                result.append(Edit("+", new[from_y]))
            else:
                result.append(Edit("-", old[from_x]))
            x, y = from_x, from_y
    return result[::-1]


def removals_first(items):
    """Within each run of changes, put what goes before what comes."""
    result, added = [], []
    for edit in items:
        if edit.op == "+":
            added.append(edit)
            continue
        if edit.op == " ":
            result.extend(added)
            added.clear()
        result.append(edit)
    return result + added
