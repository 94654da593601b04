"""How many columns of a terminal a text takes."""

import unicodedata


def char_width(character):
    """0 for combining marks and controls, 2 for wide characters, 1 for the rest."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width(text):
    """Columns of a text."""
    return sum(map(char_width, text))


def pad(text, columns, align="left"):
    """A text filled with spaces to a number of columns; longer texts stay as they are."""
    missing = max(0, columns - width(text))
    if align == "right":
        return " " * missing + text
    if align == "center":
        left = missing // 2
        return " " * left + text + " " * (missing - left)
    return text + " " * missing


def shorten(text, columns, mark="…"):
    """A text cut to a number of columns, with a mark where it was cut."""
    if width(text) <= columns:
        return text
    room = columns - width(mark)
    if room < 0:
        return ""
    result = ""
    for character in text:
        if width(result) + char_width(character) > room:
            break
        result += character
    return result + mark
