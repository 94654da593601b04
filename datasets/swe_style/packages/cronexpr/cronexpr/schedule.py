"""When an expression fires."""

import calendar
from datetime import datetime, timedelta

from .fields import KINDS, CronError, parse_field

SHORTCUTS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# Leap days are eight years apart at most.
HORIZON_YEARS = 9


class Schedule:
    """A parsed expression."""

    def __init__(self, fields, text):
        self.minute, self.hour, self.day, self.month, self.weekday = fields
        self.text = text

    @classmethod
    def parse(cls, text):
        """A schedule from five fields or a shortcut."""
        expression = SHORTCUTS.get(text.strip().lower(), text)
        parts = expression.split()
        if len(parts) != len(KINDS):
            raise CronError(f"{text!r} has {len(parts)} fields, expected {len(KINDS)}")
        return cls([parse_field(kind, part) for kind, part in zip(KINDS, parts)], text)

    def __repr__(self):
        return f"Schedule({self.text!r})"

    def day_matches(self, year, month, day):
        """Whether it can fire on a day, the month aside."""
        weekday = (calendar.weekday(year, month, day) + 1) % 7
        by_day, by_weekday = day in self.day, weekday in self.weekday
        if self.day.starred or self.weekday.starred:
            return by_day and by_weekday
        return by_day or by_weekday

    def matches(self, moment):
        """Whether it fires in the minute of `moment`."""
        return (
            moment.minute in self.minute
            and moment.hour in self.hour
            and moment.month in self.month
            and self.day_matches(moment.year, moment.month, moment.day)
        )

    def next(self, after):
        """The first time it fires strictly after `after`; None if it never does."""
        moment = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
        limit = moment.year + HORIZON_YEARS
        while moment.year <= limit:
            if moment.month not in self.month:
                moment = self._next_month(moment)
                continue
            if not self.day_matches(moment.year, moment.month, moment.day):
                moment = datetime(moment.year, moment.month, moment.day) + timedelta(days=1)
                continue
            hour = self.hour.at_or_after(moment.hour)
            if hour is None:
                moment = datetime(moment.year, moment.month, moment.day) + timedelta(days=1)
                continue
            if hour != moment.hour:
                moment = moment.replace(hour=hour, minute=0)
            minute = self.minute.at_or_after(moment.minute)
            if minute is None:
                moment = moment.replace(minute=0) + timedelta(hours=1)
                continue
            return moment.replace(minute=minute)
        return None

    def _next_month(self, moment):
        """The first minute of the next month that is allowed."""
        month = self.month.at_or_after(moment.month + 1)
        if month is None:
            return datetime(moment.year + 1, self.month.first, 1)
        return datetime(moment.year, month, 1)

    def upcoming(self, after, count):
        """The next `count` times."""
        result = []
        while len(result) < count:
            after = self.next(after)
            if after is None:
                break
            result.append(after)
        return result

    def between(self, start, end):
        """All times t with start <= t < end."""
        result = []
        moment = self.next(start - timedelta(minutes=1))
        while moment is not None and moment < end:
            result.append(moment)
            moment = self.next(moment)
        return result
