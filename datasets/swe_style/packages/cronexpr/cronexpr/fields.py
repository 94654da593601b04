"""The five fields: their ranges, names, and parsing."""

from dataclasses import dataclass


class CronError(ValueError):
    """An expression that is not valid."""


@dataclass(frozen=True)
class FieldKind:
    """What a field may hold."""

    name: str
    low: int
    high: int
    names: tuple = ()

    def number(self, text):
        """A number or a name."""
        folded = text.lower()
        if folded in self.names:
            return self.names.index(folded) + (1 if self.name == "month" else 0)
        if not text.isdigit():
            raise CronError(f"{self.name}: {text!r} is not a number{' or name' if self.names else ''}")
        value = int(text)
        if not self.low <= value <= self.high:
            raise CronError(f"{self.name}: {value} is not allowed, allowed are {self.low} to {self.high}")
        return value


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

MINUTE = FieldKind("minute", 0, 59)
HOUR = FieldKind("hour", 0, 23)
DAY = FieldKind("day of month", 1, 31)
MONTH = FieldKind("month", 1, 12, MONTHS)
WEEKDAY = FieldKind("day of week", 0, 7, DAYS)
KINDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)


@dataclass(frozen=True)
class Field:
    """The numbers that a field allows, sorted, and whether it began with a star."""

    values: tuple
    starred: bool

    def __contains__(self, value):
        return value in self.values

    @property
    def first(self):
        """The smallest number."""
        return self.values[0]

    def at_or_after(self, value):
        """The smallest allowed number that is not below the given one, or None."""
        for candidate in self.values:
            if candidate >= value:
                return candidate
        return None


def parse_field(kind, text):
    """A field from its text."""
    if not text:
        raise CronError(f"{kind.name}: empty")
    values = set()
    for part in text.split(","):
        values.update(parse_part(kind, part))
    if kind is WEEKDAY:
        values = {value % 7 for value in values}
    return Field(tuple(sorted(values)), text.startswith("*"))


def parse_part(kind, part):
    """The numbers of one part of a list."""
    body, slash, step_text = part.partition("/")
    step = 1
    if slash:
        if not step_text.isdigit() or int(step_text) == 0:
            raise CronError(f"{kind.name}: the step {step_text!r} is not a number above 0")
        step = int(step_text)
    if body == "*":
        low, high = kind.low, 6 if kind is WEEKDAY else kind.high
    elif "-" in body:
        first, _, last = body.partition("-")
        low, high = kind.number(first), kind.number(last)
        if kind is WEEKDAY and high == 0:
            high = 7
        if low > high:
            raise CronError(f"{kind.name}: the range {body!r} goes backwards")
    else:
        low = kind.number(body)
        # `5/10` is short for `5-59/10`.
        high = kind.high if slash else low
    return range(low, high + 1, step)
