"""Rows from text (RFC 4180, with any delimiter)."""

from .dialect import Dialect


class CsvError(ValueError):
    """A text that is not valid in a dialect."""

    def __init__(self, line, message):
        super().__init__(f"line {line}: {message}")
        self.line = line


def read(text, dialect=Dialect()):
    """All rows; empty lines are skipped. Quoted cells may hold delimiters, newlines and doubled quotes."""
    return list(rows_of(text, dialect))


def rows_of(text, dialect):
    """Rows one by one."""
    row, cell = [], []
    state = "start"
    line = opened = 1
    for character in text.replace("\r\n", "\n").replace("\r", "\n"):
        if state == "quoted":
            if character == dialect.quote:
                state = "closing"
            else:
                line += character == "\n"
                cell.append(character)
            continue
        if state == "closing" and character == dialect.quote:
            cell.append(character)
            state = "quoted"
        elif character == dialect.delimiter:
            row.append("".join(cell))
            cell.clear()
            state = "start"
        elif character == "\n":
            line += 1
            if row or cell or state == "closing":
                yield [*row, "".join(cell)]
            row.clear()
            cell.clear()
            state = "start"
        elif state == "start" and character == dialect.quote:
            state, opened = "quoted", line
        elif state == "closing":
            raise CsvError(line, f"unexpected {character!r} after a closing quote")
        else:
            cell.append(character)
            state = "plain"
    if state == "quoted":
        raise CsvError(opened, "a quoted cell is not closed")
    if row or cell or state == "closing":
        yield [*row, "".join(cell)]


def write(rows, dialect=Dialect()):
    """The text of rows; cells are quoted where they must be."""
    special = (dialect.delimiter, dialect.quote, "\n", "\r")

    def written(cell):
        if any(character in cell for character in special):
            return dialect.quote + cell.replace(dialect.quote, dialect.quote * 2) + dialect.quote
        return cell

    return "".join(dialect.delimiter.join(map(written, row)) + "\n" for row in rows)
