"""From a table to lines."""

from .width import pad, shorten, width

SMALLEST = 3


def escape(cell):
    """A cell as it is written: bars escaped outside of code spans, newlines as `<br>`."""
    pieces = cell.replace("\n", "<br>").split("`")
    # Pieces at odd places are inside code spans, unless the last span is not closed.
    closed = len(pieces) % 2 == 1
    for place, piece in enumerate(pieces):
        inside = place % 2 == 1 and (closed or place < len(pieces) - 1)
        if not inside:
            pieces[place] = piece.replace("|", "\\|")
    return "`".join(pieces)


def render(table, max_width=None):
    """The lines of a table, joined by newlines. With `max_width`, longer cells are cut to so many columns."""
    cells = [[escape(cell) for cell in row] for row in [table.header, *table.rows]]
    if max_width is not None:
        cells = [[shorten(cell, max(max_width, SMALLEST)) for cell in row] for row in cells]
    columns = range(len(table.header))
    widths = [max([SMALLEST] + [width(row[i]) for row in cells]) for i in columns]
    lines = [row_line(row, widths, table.alignments) for row in cells]
    lines.insert(1, rule_line(widths, table.alignments))
    return "\n".join(lines) + "\n"


def row_line(row, widths, alignments):
    """One row."""
    padded = (pad(cell, size, alignment) for cell, size, alignment in zip(row, widths, alignments))
    return "| " + " | ".join(padded) + " |"


def rule_line(widths, alignments):
    """The line under the header."""
    parts = []
    for size, alignment in zip(widths, alignments):
        left = ":" if alignment in ("left", "center") else "-"
        right = ":" if alignment in ("right", "center") else "-"
        parts.append(left + "-" * size + right)
    return "|" + "|".join(parts) + "|"
