import unittest

from minipatch import PatchError, apply, reverse, unified

OLD = "".join(f"line {n}\n" for n in range(1, 31))
NEW = OLD.replace("line 5\n", "line five\nand more\n").replace("line 25\n", "")


class ApplyTest(unittest.TestCase):
    def test_forth_and_back(self):
        patch = unified(OLD, NEW)
        self.assertEqual(apply(OLD, patch), NEW)
        self.assertEqual(apply(NEW, reverse(patch)), OLD)

    def test_moved(self):
        patch = unified(OLD, NEW)
        self.assertEqual(apply("top\n" * 4 + OLD, patch), "top\n" * 4 + NEW)

    def test_does_not_fit(self):
        patch = unified(OLD, NEW)
        with self.assertRaisesRegex(PatchError, r"hunk 2 \(@@ -22,7 \+23,6 @@\) does not fit anywhere"):
            apply(OLD.replace("line 24", "changed"), patch)

    def test_to_and_from_nothing(self):
        self.assertEqual(apply("", unified("", "a\nb\n")), "a\nb\n")
        self.assertEqual(apply("a\nb\n", unified("a\nb\n", "")), "")


if __name__ == "__main__":
    unittest.main()
