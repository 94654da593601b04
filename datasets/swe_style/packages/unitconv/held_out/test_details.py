import unittest

from unitconv import Quantity, convert, parse_unit


class TemperatureTest(unittest.TestCase):
    def test_both_ways(self):
        for f, c in [(212, 100), (98.6, 37), (-40, -40), (32, 0)]:
            self.assertAlmostEqual(convert(f, "degF", "degC"), c)
            self.assertAlmostEqual(convert(c, "degC", "degF"), f)
        self.assertAlmostEqual(convert(0, "K", "degF"), -459.67)

    def test_differences_inside_products(self):
        self.assertAlmostEqual(convert(1, "J/(kg degC)", "J/(kg K)"), 1.0)
        self.assertAlmostEqual(convert(9, "W/degF", "W/K"), 16.2)


class DivisionTest(unittest.TestCase):
    def test_only_the_next_factor_is_divided(self):
        self.assertEqual(parse_unit("m/s*kg").dimension, parse_unit("m*kg/s").dimension)
        self.assertEqual(parse_unit("J/kg K").dimension, parse_unit("J*K/kg").dimension)
        self.assertEqual(parse_unit("m/s/s").dimension, parse_unit("m/s^2").dimension)
        self.assertEqual(parse_unit("(kg m)/(s*s)").dimension, parse_unit("N").dimension)

    def test_negative_exponents(self):
        self.assertEqual(parse_unit("m*s^-2").dimension, parse_unit("m/s^2").dimension)


class QuotientTest(unittest.TestCase):
    def test_the_text_means_the_same(self):
        q = Quantity(10, "J") / Quantity(2, "kg*K")
        self.assertEqual(q.parsed.dimension, parse_unit("J/(kg*K)").dimension)
        self.assertEqual(repr(Quantity(8, "m") / Quantity(2, "m/s")), "4 m/(m/s)")
        self.assertAlmostEqual(q.to("J/(g*K)").value, 0.005)

    def test_inverse(self):
        q = Quantity(1) / Quantity(4, "s")
        self.assertAlmostEqual(q.to("Hz").value, 0.25)


class PrefixTest(unittest.TestCase):
    def test_names_that_look_prefixed(self):
        self.assertEqual(parse_unit("min").dimension, parse_unit("s").dimension)
        self.assertAlmostEqual(convert(1, "min", "s"), 60)
        self.assertAlmostEqual(convert(1, "mm^2", "m^2"), 1e-6)
        self.assertAlmostEqual(convert(1, "mmol/cL", "mol/L"), 0.1)


if __name__ == "__main__":
    unittest.main()
