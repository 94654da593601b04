import unittest

from mdtable import pad, shorten, width


class WidthTest(unittest.TestCase):
    def test_ascii(self):
        self.assertEqual(width("hello"), 5)

    def test_wide(self):
        self.assertEqual(width("東京"), 4)

    def test_pad(self):
        self.assertEqual(pad("ab", 5), "ab   ")
        self.assertEqual(pad("ab", 5, "right"), "   ab")
        self.assertEqual(pad("ab", 5, "center"), " ab  ")

    def test_shorten(self):
        self.assertEqual(shorten("abcdef", 4), "abc…")
        self.assertEqual(shorten("abc", 4), "abc")


if __name__ == "__main__":
    unittest.main()
