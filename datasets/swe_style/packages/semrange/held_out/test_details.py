import unittest

from semrange import Range, Version, sort_versions


class PrecedenceTest(unittest.TestCase):
    def test_the_example_of_the_specification(self):
        order = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
                 "1.0.0-rc.1", "1.0.0"]
        self.assertEqual([str(v) for v in sort_versions(reversed(order))], order)
        self.assertEqual(len({hash(Version.parse(text)) for text in order}), len(order))


class PrereleaseTest(unittest.TestCase):
    def test_only_where_asked_for(self):
        wanted = Range.parse(">=2.0.0-beta.2 <3")
        found = {v: wanted.matches(v) for v in
                 ["2.0.0-beta.1", "2.0.0-beta.2", "2.0.0-rc.1", "2.0.0", "2.1.0-beta.9", "3.0.0-rc.1"]}
        self.assertEqual([v for v, yes in found.items() if yes], ["2.0.0-beta.2", "2.0.0-rc.1", "2.0.0"])

    def test_end_of_a_range(self):
        self.assertFalse(Range.parse("<2").matches("2.0.0-rc.1"))
        self.assertFalse(Range.parse("^1.2").matches("2.0.0-alpha"))


class CaretTest(unittest.TestCase):
    def ends(self, text, last, first_out):
        wanted = Range.parse(text)
        self.assertTrue(wanted.matches(last), f"{last} in {text}")
        self.assertFalse(wanted.matches(first_out), f"{first_out} in {text}")

    def test_zeros(self):
        self.ends("^0.0.3", "0.0.3", "0.0.4")
        self.ends("^0.0", "0.0.9", "0.1.0")
        self.ends("^0", "0.9.9", "1.0.0")
        self.ends("^0.0.0", "0.0.0", "0.0.1")
        self.ends("^0.2", "0.2.9", "0.3.0")

    def test_partial_comparisons(self):
        self.ends(">1.2", "1.3.0", "1.2.9")
        self.ends("<=1.2", "1.2.9", "1.3.0")
        self.ends("<1.2", "1.1.9", "1.2.0")
        self.ends(">1", "2.0.0", "1.9.9")


if __name__ == "__main__":
    unittest.main()
