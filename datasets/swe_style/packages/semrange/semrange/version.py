"""Versions: parsing, order, increments (semver.org 2.0.0)."""

import functools
import re

PATTERN = re.compile(
    r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


class VersionError(ValueError):
    """A text that is not a version."""


@functools.total_ordering
class Version:
    """Three numbers, prerelease identifiers, build identifiers. Build identifiers do not count in comparisons."""

    def __init__(self, major, minor, patch, prerelease=(), build=()):
        self.release = (major, minor, patch)
        self.prerelease = tuple(prerelease)
        self.build = tuple(build)

    @classmethod
    def parse(cls, text):
        """A version from text such as `1.0.0-rc.1+build.5`; a leading `v` is allowed."""
        match = PATTERN.fullmatch(text.strip())
        if match is None:
            raise VersionError(f"{text!r} is not a version, expected MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD]")
        major, minor, patch, prerelease, build = match.groups()
        identifiers = prerelease.split(".") if prerelease else []
        for identifier in identifiers:
            if identifier.isdigit() and len(identifier) > 1 and identifier[0] == "0":
                raise VersionError(f"{text!r}: the number {identifier} in the prerelease starts with a zero")
        return cls(int(major), int(minor), int(patch), identifiers, build.split(".") if build else ())

    @property
    def major(self):
        """The first number."""
        return self.release[0]

    @property
    def minor(self):
        """The second number."""
        return self.release[1]

    @property
    def patch(self):
        """The third number."""
        return self.release[2]

    def __str__(self):
        text = ".".join(map(str, self.release))
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        if self.build:
            text += "+" + ".".join(self.build)
        return text

    def __repr__(self):
        return f"Version({str(self)!r})"

    def _key(self):
        """What decides the order: a release comes after its prereleases, numbers come before words."""
        identifiers = tuple((0, int(i), "") if i.isdigit() else (1, 0, i) for i in self.prerelease)
        return self.release, not self.prerelease, identifiers

    def __eq__(self, other):
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self._key() < other._key()

    def __hash__(self):
        return hash(self._key())

    def bump(self, part):
        """The next version: `major`, `minor` or `patch`. A prerelease of that version becomes its release."""
        major, minor, patch = self.release
        if part == "major":
            done = self.prerelease and minor == 0 and patch == 0
            return Version(major, 0, 0) if done else Version(major + 1, 0, 0)
        if part == "minor":
            done = self.prerelease and patch == 0
            return Version(major, minor, 0) if done else Version(major, minor + 1, 0)
        if part == "patch":
            return Version(major, minor, patch) if self.prerelease else Version(major, minor, patch + 1)
        raise ValueError(f"expected `major`, `minor` or `patch`, got {part!r}")
