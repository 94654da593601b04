"""The units that are known."""

from dataclasses import dataclass

from .dimension import Dimension


@dataclass(frozen=True)
class Unit:
    """A value in this unit is `value * factor + offset` in base units."""

    factor: float
    dimension: Dimension
    offset: float = 0.0
    prefixes: bool = False


PREFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "c": 1e-2,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}

ONE = Dimension()
LENGTH = Dimension.base("length")
MASS = Dimension.base("mass")
TIME = Dimension.base("time")
CURRENT = Dimension.base("current")
TEMPERATURE = Dimension.base("temperature")
AMOUNT = Dimension.base("amount")
FORCE = MASS * LENGTH / TIME**2
ENERGY = FORCE * LENGTH
POWER = ENERGY / TIME

UNITS = {
    # length
    "m": Unit(1.0, LENGTH, prefixes=True),
    "in": Unit(0.0254, LENGTH),
    "ft": Unit(0.3048, LENGTH),
    "yd": Unit(0.9144, LENGTH),
    "mi": Unit(1609.344, LENGTH),
    # mass; the base unit is the kilogram
    "g": Unit(1e-3, MASS, prefixes=True),
    "t": Unit(1000.0, MASS),
    "lb": Unit(0.45359237, MASS),
    "oz": Unit(0.028349523125, MASS),
    # time
    "s": Unit(1.0, TIME, prefixes=True),
    "min": Unit(60.0, TIME),
    "h": Unit(3600.0, TIME),
    "d": Unit(86400.0, TIME),
    # temperature; the base unit is the kelvin
    "K": Unit(1.0, TEMPERATURE, prefixes=True),
    "degC": Unit(1.0, TEMPERATURE, offset=273.15),
    "degF": Unit(5 / 9, TEMPERATURE, offset=459.67 * 5 / 9),
    # derived
    "A": Unit(1.0, CURRENT, prefixes=True),
    "mol": Unit(1.0, AMOUNT, prefixes=True),
    "N": Unit(1.0, FORCE, prefixes=True),
    "J": Unit(1.0, ENERGY, prefixes=True),
    "cal": Unit(4.184, ENERGY, prefixes=True),
    "W": Unit(1.0, POWER, prefixes=True),
    "Pa": Unit(1.0, FORCE / LENGTH**2, prefixes=True),
    "bar": Unit(1e5, FORCE / LENGTH**2, prefixes=True),
    "V": Unit(1.0, POWER / CURRENT, prefixes=True),
    "Hz": Unit(1.0, ONE / TIME, prefixes=True),
    "L": Unit(1e-3, LENGTH**3, prefixes=True),
}


def find_unit(name):
    """A unit by its name, with or without a prefix; None if there is none."""
    if name in UNITS:
        return UNITS[name]
    unit = UNITS.get(name[1:])
    if unit is not None and unit.prefixes and name[0] in PREFIXES:
        return Unit(unit.factor * PREFIXES[name[0]], unit.dimension)
    return None
