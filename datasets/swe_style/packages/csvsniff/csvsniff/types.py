"""Types of cells and columns."""

import datetime
import re

INTEGER = re.compile(r"[-+]?\d+")
FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
BOOLEANS = {"true": True, "false": False, "yes": True, "no": False}
EMPTY = {"", "na", "n/a", "null", "none", "-"}

# What a column is when its cells are of several kinds.
WIDER = {frozenset(("int", "float")): "float"}


def kind_of(cell, decimal_comma=False):
    """`none`, `int`, `float`, `bool`, `date` or `str`."""
    text = cell.strip()
    folded = text.lower()
    if folded in EMPTY:
        return "none"
    if INTEGER.fullmatch(text):
        # Codes such as 007 would lose their zeros.
        return "str" if len(text.lstrip("+-")) > 1 and text.lstrip("+-")[0] == "0" else "int"
    if folded in BOOLEANS:
        return "bool"
    number = text.replace(",", ".", 1) if decimal_comma else text
    if FLOAT.fullmatch(number):
        return "float"
    if DATE.fullmatch(text) and valid_date(text):
        return "date"
    return "str"


def valid_date(text):
    """Whether the day exists."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def column_types(rows, decimal_comma=False):
    """One type per column; `str` where cells do not agree, `none` where all are empty."""
    columns = max(map(len, rows), default=0)
    result = []
    for place in range(columns):
        kinds = {kind_of(row[place], decimal_comma) for row in rows if place < len(row)} - {"none"}
        if len(kinds) == 1:
            result.append(kinds.pop())
        else:
            result.append(WIDER.get(frozenset(kinds), "str") if kinds else "none")
    return result


def convert(cell, kind, decimal_comma=False):
    """A cell as a value of its column's type; empty cells are None except in text columns."""
    text = cell.strip()
    if kind == "str":
        return cell
    if text.lower() in EMPTY:
        return None
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text.replace(",", ".", 1) if decimal_comma else text)
    if kind == "bool":
        return BOOLEANS[text.lower()]
    return datetime.date.fromisoformat(text)


def read_typed(text, dialect=None):
    """Dictionaries by column name; columns without a name are `column 1`, `column 2`, and so on."""
    # Here, because the sniffer uses this module.
    from .reader import read
    from .sniffer import sniff

    dialect = dialect or sniff(text)
    rows = read(text, dialect)
    width = max(map(len, rows), default=0)
    names = [f"column {place + 1}" for place in range(width)]
    if dialect.header and rows:
        head, rows = rows[0], rows[1:]
        names[: len(head)] = [name or names[place] for place, name in enumerate(head)]
    kinds = column_types(rows, dialect.decimal_comma)
    kinds += ["none"] * (width - len(kinds))
    result = []
    for row in rows:
        cells = row + [""] * (width - len(row))
        result.append({n: convert(c, k, dialect.decimal_comma) for n, c, k in zip(names, cells, kinds)})
    return result
