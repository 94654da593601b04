import unittest

from semrange import Range, RangeError, best


class RangeTest(unittest.TestCase):
    def check(self, text, inside, outside):
        wanted = Range.parse(text)
        for version in inside:
            self.assertTrue(wanted.matches(version), f"{version} should be in {text}")
        for version in outside:
            self.assertFalse(wanted.matches(version), f"{version} should not be in {text}")

    def test_exact(self):
        self.check("1.2.3", ["1.2.3"], ["1.2.2", "1.2.4"])

    def test_comparisons(self):
        self.check(">=1.2 <2", ["1.2.0", "1.99.0"], ["1.1.9", "2.0.0"])

    def test_caret(self):
        self.check("^1.2.3", ["1.2.3", "1.9.0"], ["1.2.2", "2.0.0"])
        self.check("^0.2.3", ["0.2.3", "0.2.9"], ["0.3.0", "1.0.0"])

    def test_tilde(self):
        self.check("~1.2.3", ["1.2.3", "1.2.9"], ["1.2.2", "1.3.0"])
        self.check("~1", ["1.0.0", "1.9.0"], ["2.0.0"])

    def test_wildcards(self):
        self.check("1.2.*", ["1.2.0", "1.2.9"], ["1.3.0"])
        self.check("*", ["0.0.1", "9.9.9"], ["1.0.0-rc.1"])

    def test_alternatives(self):
        self.check("<1 || ^3.1", ["0.9.0", "3.1.0"], ["1.0.0", "3.0.9"])

    def test_errors(self):
        for text in ["one", ">", "1.2.3.4", ">=a"]:
            with self.assertRaises(RangeError, msg=text):
                Range.parse(text)

    def test_best(self):
        self.assertEqual(str(best("<2", ["1.0.0", "1.5.2", "2.0.0"])), "1.5.2")
        self.assertIsNone(best(">3", ["1.0.0"]))


if __name__ == "__main__":
    unittest.main()
