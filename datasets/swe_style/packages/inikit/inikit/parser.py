"""From text to a Document."""

from .document import Document
from .errors import ParseError

COMMENT = "#;"
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def load(path, encoding="utf-8"):
    """Parse a file."""
    with open(path, encoding=encoding) as file:
        return loads(file.read())


def loads(text):
    """Parse a text."""
    document = Document()
    section = None
    key = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in COMMENT:
            continue
        if line[0].isspace() and key is not None:
            section[key] = section[key] + "\n" + parse_value(stripped, number)
            continue
        if stripped[0] == "[":
            section = document.section(section_name(stripped, number))
            key = None
            continue
        if section is None:
            section = document.section("")
        key, value = split_pair(stripped, number)
        section[key] = parse_value(value, number)
    return document


def section_name(line, number):
    """The name between brackets; nothing but a comment may follow."""
    end = line.find("]")
    if end < 0:
        raise ParseError(number, "a section header without `]`")
    rest = line[end + 1 :].strip()
    if rest and rest[0] not in COMMENT:
        raise ParseError(number, f"unexpected text after the section header: {rest!r}")
    return line[1:end].strip()


def split_pair(line, number):
    """Key and raw value, split at the first `=` or `:`."""
    places = [place for place in (line.find("="), line.find(":")) if place >= 0]
    if not places:
        raise ParseError(number, f"expected `key = value`, found {line!r}")
    place = min(places)
    key = line[:place].rstrip()
    if not key:
        raise ParseError(number, "a value without a key")
    return key, line[place + 1 :].lstrip()


def parse_value(raw, number):
    """A value without its comment, with quotes and escapes resolved."""
    if raw.startswith('"'):
        return parse_quoted(raw, number)
    for place, character in enumerate(raw):
        if character in COMMENT and (place == 0 or raw[place - 1].isspace()):
            return raw[:place].rstrip()
    return raw


def parse_quoted(raw, number):
    """The text between double quotes."""
    result = []
    characters = iter(enumerate(raw[1:], 1))
    for place, character in characters:
        if character == '"':
            rest = raw[place + 1 :].strip()
            if rest and rest[0] not in COMMENT:
                raise ParseError(number, f"unexpected text after the closing quote: {rest!r}")
            return "".join(result)
        if character == "\\":
            _, code = next(characters, (0, ""))
            if code not in ESCAPES:
                raise ParseError(number, f"unknown escape `\\{code}`")
            character = ESCAPES[code]
        result.append(character)
    raise ParseError(number, "a quoted value without a closing quote")
