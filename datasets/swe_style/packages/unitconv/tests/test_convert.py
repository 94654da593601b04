import unittest

from unitconv import Quantity, UnitError, convert, parse_unit


class ConvertTest(unittest.TestCase):
    def test_simple(self):
        self.assertAlmostEqual(convert(1, "mi", "m"), 1609.344)
        self.assertAlmostEqual(convert(90, "km/h", "m/s"), 25.0)
        self.assertAlmostEqual(convert(1, "lb", "g"), 453.59237)

    def test_prefixes(self):
        self.assertAlmostEqual(convert(2500, "mA", "A"), 2.5)
        self.assertAlmostEqual(convert(1, "GW", "kW"), 1e6)
        self.assertAlmostEqual(convert(3, "kHz", "Hz"), 3000)

    def test_compound(self):
        self.assertAlmostEqual(convert(1, "N", "kg*m/s^2"), 1.0)
        self.assertAlmostEqual(convert(1, "kW h", "MJ"), 3.6)
        self.assertAlmostEqual(convert(1, "J/(kg K)", "m^2/s^2/K"), 1.0)

    def test_freezing_point(self):
        self.assertAlmostEqual(convert(0, "degC", "K"), 273.15)
        self.assertAlmostEqual(convert(32, "degF", "degC"), 0.0)

    def test_wrong_dimension(self):
        with self.assertRaisesRegex(UnitError, r"cannot convert kg \(mass\) to m \(length\)"):
            convert(1, "kg", "m")

    def test_not_units(self):
        for text in ["parsec", "m^", "m^x", "(m", "m)", "kft", "m$"]:
            with self.assertRaises(UnitError, msg=text):
                parse_unit(text)

    def test_dimension_text(self):
        self.assertEqual(str(parse_unit("N").dimension), "length mass time^-2")
        self.assertEqual(str(parse_unit("").dimension), "dimensionless")


class QuantityTest(unittest.TestCase):
    def test_arithmetic(self):
        self.assertEqual(repr(Quantity(1, "km") + Quantity(500, "m")), "1.5 km")
        self.assertEqual(repr(Quantity(3, "kW") * Quantity(2, "h")), "6 kW*h")
        self.assertEqual(repr(Quantity(6, "m") / Quantity(2, "s")), "3 m/s")
        self.assertEqual(repr(2 * Quantity(3, "kg")), "6 kg")

    def test_comparison(self):
        self.assertEqual(Quantity(1, "km"), Quantity(1000, "m"))
        self.assertLess(Quantity(1, "ft"), Quantity(1, "m"))
        self.assertNotEqual(Quantity(1, "m"), Quantity(1, "s"))

    def test_different_dimensions_do_not_add(self):
        with self.assertRaises(UnitError):
            Quantity(1, "m") + Quantity(1, "s")


if __name__ == "__main__":
    unittest.main()
