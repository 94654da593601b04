"""From lines to a table."""

import re

from .table import Table

RULE = re.compile(r"\s*(:?)-+(:?)\s*")


class TableError(ValueError):
    """Lines that are not a table."""


def split_row(line):
    """The cells of a line; `\\|` is a bar within a cell, and so is a bar in a code span."""
    text = line.strip()
    if text.startswith("|"):
        text = text[1:]
    cells = [""]
    in_code = False
    characters = iter(enumerate(text, 1))
    for after, character in characters:
        if character == "\\":
            _, following = next(characters, (0, ""))
            cells[-1] += "|" if following == "|" else character + following
        elif character == "|" and not in_code:
            cells.append("")
        else:
            if character == "`":
                # A tick without a partner is only a tick.
                in_code = not in_code and "`" in text[after:]
            cells[-1] += character
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [cell.strip() for cell in cells]


def alignments_of(line):
    """The alignments of a rule such as `|:--|--:|`; None if it is not a rule."""
    cells = split_row(line)
    matches = [RULE.fullmatch(cell) for cell in cells]
    if not all(matches) or "|" not in line:
        return None
    names = {("", ""): "none", (":", ""): "left", ("", ":"): "right", (":", ":"): "center"}
    return [names[match.groups()] for match in matches]


def is_table_start(lines, place):
    """Whether a header and its rule are at a place."""
    if place + 1 >= len(lines) or "|" not in lines[place]:
        return False
    alignments = alignments_of(lines[place + 1])
    return alignments is not None and len(alignments) == len(split_row(lines[place]))


def parse(text):
    """The table in a text that holds nothing else."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not is_table_start(lines, 0):
        raise TableError("expected a header line and a rule such as `|---|---|` with as many columns")
    return parse_lines(lines)


def parse_lines(lines):
    """A table from lines that start with its header."""
    header = split_row(lines[0])
    return Table(header, alignments_of(lines[1]), [split_row(line) for line in lines[2:]])
