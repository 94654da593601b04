"""Semantic versions and ranges."""

from .ranges import Range, RangeError
from .select import best, outdated, sort_versions
from .version import Version, VersionError

__all__ = ["Range", "RangeError", "Version", "VersionError", "best", "outdated", "sort_versions"]
