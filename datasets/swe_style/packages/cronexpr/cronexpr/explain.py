"""Schedules in words."""

from .fields import DAY, HOUR, MINUTE, MONTH, WEEKDAY
from .schedule import Schedule

MONTH_NAMES = (
    "January February March April May June July August September October November December".split()
)
DAY_NAMES = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()


def joined(words):
    """`a`, `a and b`, `a, b and c`."""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def full(field, kind):
    """Whether a field allows everything."""
    return len(field.values) == (7 if kind is WEEKDAY else kind.high - kind.low + 1)


def explain(text):
    """What an expression means, as one line."""
    schedule = Schedule.parse(text)
    return ", ".join(part for part in (time_of_day(schedule), days(schedule), months(schedule)) if part)


def time_of_day(schedule):
    """The part about minutes and hours."""
    minutes, hours = schedule.minute, schedule.hour
    if full(minutes, MINUTE):
        return "every minute" if full(hours, HOUR) else f"every minute of hour {joined(map(str, hours.values))}"
    if full(hours, HOUR):
        return f"at minute {joined(map(str, minutes.values))} of every hour"
    if len(minutes.values) * len(hours.values) <= 4:
        return "at " + joined(f"{hour:02}:{minute:02}" for hour in hours.values for minute in minutes.values)
    return f"at minute {joined(map(str, minutes.values))} of hour {joined(map(str, hours.values))}"


def days(schedule):
    """The part about days; empty when every day is meant."""
    by_day = "" if full(schedule.day, DAY) else f"day {joined(map(str, schedule.day.values))} of the month"
    by_weekday = "" if full(schedule.weekday, WEEKDAY) else joined(DAY_NAMES[d] for d in schedule.weekday.values)
    if by_day and by_weekday:
        word = "and" if schedule.day.starred or schedule.weekday.starred else "or"
        return f"on {by_day} {word} on {by_weekday}"
    return f"on {by_day or by_weekday}" if by_day or by_weekday else ""


def months(schedule):
    """The part about months; empty when every month is meant."""
    return "" if full(schedule.month, MONTH) else f"in {joined(MONTH_NAMES[m - 1] for m in schedule.month.values)}"
