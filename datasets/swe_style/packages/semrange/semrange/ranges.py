"""Ranges of versions."""

import operator
import re

from .version import Version

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
WILD = {"x", "X", "*"}
TERM = re.compile(r"(\^|~|<=|>=|<|>|=)?\s*(v?[0-9xX*][0-9A-Za-z.*+-]*)")


class RangeError(ValueError):
    """A text that is not a range."""


class Range:
    """Alternatives, each a list of `(operator, version)` that must all hold."""

    def __init__(self, alternatives, text):
        self.alternatives = alternatives
        self.text = text

    @classmethod
    def parse(cls, text):
        """A range from text; see the table in the README."""
        return cls([parse_alternative(part, text) for part in text.split("||")], text)

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"Range({self.text!r})"

    def matches(self, version):
        """Whether a version, or its text, is inside."""
        if isinstance(version, str):
            version = Version.parse(version)
        return any(holds(bounds, version) for bounds in self.alternatives)


def holds(bounds, version):
    """Whether all bounds hold, and a prerelease was asked for."""
    if not all(OPERATORS[name](version, bound) for name, bound in bounds):
        return False
    if not version.prerelease:
        return True
    return any(bound.prerelease and bound.release == version.release for _, bound in bounds)


def parse_alternative(text, whole):
    """The bounds of one alternative; an empty one allows every release."""
    bounds = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = TERM.match(text, at)
        if match is None:
            raise RangeError(f"{whole!r} is not a range: unexpected {text[at:]!r}")
        bounds.extend(parse_term(match.group(1) or "", match.group(2), whole))
        at = match.end()
        while at < len(text) and text[at] in " ,":
            at += 1
    return bounds


def parse_term(name, text, whole):
    """The bounds that one operator and version stand for."""
    numbers, version = parse_partial(text, whole)
    if name == "^":
        return [(">=", version), ("<", caret_end(numbers))]
    if name == "~":
        return [(">=", version), ("<", next_after(numbers[:2]))]
    if len(numbers) == 3:
        return [(name or "=", version)]
    if name in ("", "="):
        return [(">=", version), ("<", next_after(numbers))] if numbers else []
    if name in (">", "<="):
        # `>1.2` excludes all of 1.2, `<=1.2` includes all of it.
        return [(">=" if name == ">" else "<", next_after(numbers))]
    return [(name, version)]


def parse_partial(text, whole):
    """The numbers that are given, up to the first wildcard, and the smallest version that starts with them."""
    core = text.removeprefix("v").split("-")[0].split("+")[0]
    numbers = []
    for part in core.split("."):
        if part in WILD:
            break
        if not part.isdigit():
            raise RangeError(f"{whole!r} is not a range: {text!r} is not a version or a part of one")
        numbers.append(int(part))
    if len(numbers) > 3:
        raise RangeError(f"{whole!r} is not a range: {text!r} has more than three numbers")
    if len(numbers) == 3:
        return numbers, Version.parse(text)
    return numbers, Version(*(numbers + [0, 0, 0])[:3])


def next_after(numbers):
    """The smallest version above all that start with the given numbers."""
    if not numbers:
        raise RangeError("a wildcard alone cannot follow an operator")
    return Version(*(numbers[:-1] + [numbers[-1] + 1] + [0, 0])[:3])


def caret_end(numbers):
    """The first version that a caret no longer allows: the leftmost number that is not zero goes up."""
    for place, number in enumerate(numbers):
        if number != 0:
            return next_after(numbers[: place + 1])
    return next_after(numbers)
