import unittest

import inikit


class ExpandTest(unittest.TestCase):
    def expand(self, text):
        return inikit.expand(inikit.loads(text)).to_dict()

    def test_same_section(self):
        self.assertEqual(self.expand("[s]\na = 1\nb = x${a}y\n")["s"]["b"], "x1y")

    def test_other_section(self):
        self.assertEqual(self.expand("[p]\nroot = /srv\n[q]\nlog = ${p:root}/log\n")["q"]["log"], "/srv/log")

    def test_dollar(self):
        self.assertEqual(self.expand("[s]\nprice = $$5\n")["s"]["price"], "$5")

    def test_missing_key(self):
        with self.assertRaisesRegex(inikit.InterpolationError, "names a key that does not exist"):
            self.expand("[s]\na = ${b}\n")

    def test_circle(self):
        with self.assertRaisesRegex(inikit.InterpolationError, "circular reference: s:a -> s:b -> s:a"):
            self.expand("[s]\na = ${b}\nb = ${a}\n")


if __name__ == "__main__":
    unittest.main()
