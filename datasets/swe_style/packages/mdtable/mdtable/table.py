"""A table in memory."""

from dataclasses import dataclass, field

ALIGNMENTS = ("none", "left", "center", "right")


@dataclass
class Table:
    """Header, alignments and rows, all of the same length."""

    header: list
    alignments: list = field(default_factory=list)
    rows: list = field(default_factory=list)

    def __post_init__(self):
        self.alignments = (list(self.alignments) + ["none"] * len(self.header))[: len(self.header)]
        for alignment in self.alignments:
            if alignment not in ALIGNMENTS:
                raise ValueError(f"alignment {alignment!r} is not allowed, allowed are {', '.join(ALIGNMENTS)}")
        self.rows = [self.fitted(row) for row in self.rows]

    def fitted(self, row):
        """A row with as many cells as the header: missing ones are empty, further ones are dropped."""
        count = len(self.header)
        return (list(row) + [""] * count)[:count]

    def append(self, row):
        """Add a row."""
        self.rows.append(self.fitted(row))

    def column(self, name):
        """The cells below a header."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def sort(self, name, key=None, reverse=False):
        """Sort the rows by a column; as numbers when all cells are numbers."""
        place = self.header.index(name)
        if key is None:
            key = number_key if all(is_number(row[place]) for row in self.rows) else str.casefold
        self.rows.sort(key=lambda row: key(row[place]), reverse=reverse)

    @classmethod
    def from_dicts(cls, records):
        """A table of dictionaries; columns in the order in which keys appear, numbers to the right."""
        header = list(dict.fromkeys(key for record in records for key in record))
        rows = [[str(record.get(key, "")) for key in header] for record in records]
        numeric = [all(is_number(row[i]) or not row[i] for row in rows) for i in range(len(header))]
        return cls(header, ["right" if number else "none" for number in numeric], rows)


def number_key(cell):
    """A cell as a number."""
    return float(cell.replace(",", ""))


def is_number(cell):
    """Whether a cell is a number, thousands commas allowed."""
    try:
        number_key(cell)
    except ValueError:
        return False
    return True
