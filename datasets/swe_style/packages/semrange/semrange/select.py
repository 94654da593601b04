"""Choosing among versions."""

from .ranges import Range
from .version import Version


def as_version(item):
    """A version from a version or its text."""
    return Version.parse(item) if isinstance(item, str) else item


def sort_versions(items, newest_first=False):
    """Versions in order."""
    return sorted(map(as_version, items), reverse=newest_first)


def best(wanted, items):
    """The newest version in a range, or None."""
    wanted = Range.parse(wanted) if isinstance(wanted, str) else wanted
    return max((version for version in map(as_version, items) if wanted.matches(version)), default=None)


def outdated(installed, available):
    """`{name: (installed, newest)}` for every name with a newer release; prereleases are not offered."""
    result = {}
    for name, current in installed.items():
        current = as_version(current)
        releases = [v for v in map(as_version, available.get(name, ())) if not v.prerelease]
        newest = max(releases, default=current)
        if newest > current:
            result[name] = (current, newest)
    return result
