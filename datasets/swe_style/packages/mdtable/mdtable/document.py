"""Tables inside documents."""

from .parse import is_table_start, parse_lines
from .render import render

FENCES = ("```", "~~~")


def format_text(text):
    """A document with every table in it lined up. Indented and fenced code is left alone."""
    lines = text.split("\n")
    result = []
    place = 0
    fence = None
    while place < len(lines):
        line = lines[place]
        stripped = line.lstrip()
        mark = stripped[:3]
        if fence is not None:
            if mark == fence:
                fence = None
        elif mark in FENCES:
            fence = mark
        elif not line.startswith("    ") and is_table_start(lines, place):
            end = place + 2
            while end < len(lines) and "|" in lines[end] and lines[end].strip():
                end += 1
            indent = line[: len(line) - len(stripped)]
            table = render(parse_lines(lines[place:end]))
            result.extend(indent + row for row in table.rstrip("\n").split("\n"))
            place = end
            continue
        result.append(line)
        place += 1
    return "\n".join(result)
