"""Guessing a dialect from a sample."""

from collections import Counter

from .dialect import Dialect
from .reader import CsvError, read
from .types import kind_of

DELIMITERS = ",;\t|:"
QUOTES = "\"'"
SAMPLE_ROWS = 200


def sniff(text):
    """The dialect that fits a text best."""
    sample = sample_of(text)
    quote = guess_quote(sample)
    delimiter = guess_delimiter(sample, quote)
    decimal_comma = delimiter != "," and has_decimal_commas(sample, delimiter, quote)
    plain = Dialect(delimiter, quote, False, decimal_comma)
    return Dialect(delimiter, quote, has_header(read(sample, plain), decimal_comma), decimal_comma)


def sample_of(text):
    """The first lines of a text, up to a place where no quote is open."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if len(lines) <= SAMPLE_ROWS:
        return text
    end = SAMPLE_ROWS
    while end < len(lines) and "\n".join(lines[:end]).count('"') % 2 == 1:
        end += 1
    return "\n".join(lines[:end]) + "\n"


def guess_quote(sample):
    """The quote that stands at the edges of cells most often; the double quote if none does."""
    edges = Counter()
    for line in sample.splitlines():
        for quote in QUOTES:
            for delimiter in DELIMITERS:
                edges[quote] += line.count(quote + delimiter) + line.count(delimiter + quote)
            edges[quote] += line.startswith(quote) + line.endswith(quote)
    return "'" if edges["'"] > edges['"'] else '"'


def guess_delimiter(sample, quote):
    """The delimiter that gives the most regular rows."""
    best, best_score = ",", 0.0
    for delimiter in DELIMITERS:
        try:
            rows = read(sample, Dialect(delimiter, quote))
        except CsvError:
            continue
        score = regularity(rows)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def regularity(rows):
    """How table-like rows are: the share of rows with the most common length, more for more columns."""
    if not rows:
        return 0.0
    lengths = Counter(map(len, rows))
    columns, count = max(lengths.items(), key=lambda item: (item[1], item[0]))
    if columns < 2:
        return 0.0
    return count / len(rows) * (1 - 1 / columns)


def has_decimal_commas(sample, delimiter, quote):
    """Whether numbers are written with a comma: some cells look so, and none with a point."""
    cells = [cell for row in read(sample, Dialect(delimiter, quote)) for cell in row]
    commas = sum(kind_of(cell, True) == "float" and "," in cell for cell in cells)
    points = sum(kind_of(cell, False) == "float" and "." in cell for cell in cells)
    return commas > 0 and points == 0


def has_header(rows, decimal_comma):
    """Whether the first row names the columns: distinct words, and a column below has another type."""
    if len(rows) < 2:
        return False
    first, rest = rows[0], rows[1:]
    if len(set(first)) != len(first) or any(kind_of(cell, decimal_comma) != "str" for cell in first):
        return False
    for place in range(len(first)):
        kinds = {kind_of(row[place], decimal_comma) for row in rest if place < len(row)} - {"none"}
        if kinds and "str" not in kinds:
            return True
    return False
