"""Unit expressions such as `kg*m^2/s^2`."""

import re

from .dimension import Dimension
from .registry import Unit, find_unit

TOKEN = re.compile(r"\s*(?:([A-Za-z]+)|([-+]?\d+)|([*/^()]))")


class UnitError(ValueError):
    """An expression that is not a unit, or units that do not fit together."""


def tokenize(text):
    """Names, numbers and symbols of an expression."""
    tokens = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise UnitError(f"{text!r} is not a unit: unexpected {text[at:]!r}")
        tokens.append(match.group(0).strip())
        at = match.end()
    return tokens


def parse_unit(text):
    """The unit that an expression stands for; an empty text is the number one."""
    tokens = tokenize(text)
    if len(tokens) == 1:
        return named(tokens[0], text)
    unit, rest = product(tokens, text)
    if rest:
        raise UnitError(f"{text!r} is not a unit: unexpected {rest[0]!r}")
    return unit


def named(name, text):
    """A unit by name."""
    unit = find_unit(name)
    if unit is None:
        raise UnitError(f"{name!r} in {text!r} is not a known unit")
    return unit


def product(tokens, text):
    """Factors with `*`, `/` or nothing between them; returns what is left as well."""
    factor, dimension = 1.0, Dimension()
    sign = 1
    while tokens and tokens[0] != ")":
        if tokens[0] in "*/":
            sign = 1 if tokens[0] == "*" else -1
            tokens = tokens[1:]
            continue
        unit, tokens = power(tokens, text)
        factor *= unit.factor**sign
        dimension = dimension * unit.dimension**sign
        sign = 1
    return Unit(factor, dimension), tokens


def power(tokens, text):
    """One factor with its exponent."""
    if tokens[0] == "(":
        unit, rest = product(tokens[1:], text)
        if not rest:
            raise UnitError(f"{text!r} is not a unit: a parenthesis is not closed")
        tokens = rest[1:]
    else:
        unit, tokens = named(tokens[0], text), tokens[1:]
    if tokens and tokens[0] == "^":
        if len(tokens) < 2 or not tokens[1].lstrip("+-").isdigit():
            raise UnitError(f"{text!r} is not a unit: expected a whole number after `^`")
        exponent = int(tokens[1])
        return Unit(unit.factor**exponent, unit.dimension**exponent), tokens[2:]
    # Inside a product a temperature is a difference: only its size counts.
    return Unit(unit.factor, unit.dimension), tokens
