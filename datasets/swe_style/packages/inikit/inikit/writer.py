"""From a Document to text."""

from .parser import COMMENT, ESCAPES

CODES = {character: "\\" + code for code, character in ESCAPES.items()}


def dump(document, path, encoding="utf-8"):
    """Write a file."""
    with open(path, "w", encoding=encoding) as file:
        file.write(dumps(document))


def dumps(document):
    """The text of a document; parsing it gives the document back."""
    blocks = []
    for section in document:
        lines = [f"[{section.name}]"] if section.name else []
        lines.extend(f"{key} = {format_value(value)}" for key, value in section.items())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def format_value(value):
    """A value as it must be written to be read back unchanged."""
    if needs_quotes(value):
        return '"' + "".join(CODES.get(character, character) for character in value) + '"'
    return value


def needs_quotes(value):
    """Whether white space, comments or quotes would be lost without quotes."""
    if value != value.strip() or value.startswith('"') or "\n" in value:
        return True
    return any(c in COMMENT and (i == 0 or value[i - 1].isspace()) for i, c in enumerate(value))
