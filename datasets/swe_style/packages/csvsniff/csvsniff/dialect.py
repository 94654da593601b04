"""How a file is written."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """Delimiter, quote character, whether the first row names the columns, and whether `1,5` is a number."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = False
    decimal_comma: bool = False

    def __post_init__(self):
        if len(self.delimiter) != 1 or len(self.quote) != 1:
            raise ValueError("delimiter and quote must be single characters")
        if self.delimiter == self.quote:
            raise ValueError(f"delimiter and quote are both {self.quote!r}")
