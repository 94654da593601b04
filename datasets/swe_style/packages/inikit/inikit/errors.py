"""Everything that can go wrong with an INI file."""


class IniError(ValueError):
    """Base of all errors of this package."""


class ParseError(IniError):
    """A line that is not valid."""

    def __init__(self, line, message):
        super().__init__(f"line {line}: {message}")
        self.line = line


class InterpolationError(IniError):
    """A reference that cannot be expanded."""
