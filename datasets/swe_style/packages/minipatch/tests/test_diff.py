import unittest

from minipatch import edits, unified

OLD = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
NEW = "one\n2\nthree\nfour\nfive\nsix\nseven\neight\n"


class EditsTest(unittest.TestCase):
    def test_equal(self):
        self.assertEqual([e.op for e in edits(["a", "b"], ["a", "b"])], [" ", " "])

    def test_few(self):
        result = edits(list("abcabba"), list("cbabac"))
        self.assertEqual(sum(e.op != " " for e in result), 5)

    def test_empty(self):
        self.assertEqual("".join(e.op for e in edits([], ["x", "y"])), "++")
        self.assertEqual("".join(e.op for e in edits(["x"], [])), "-")

    def test_removals_come_first(self):
        self.assertEqual("".join(e.op for e in edits(list("axyb"), list("amnb"))), " --++ ")


class UnifiedTest(unittest.TestCase):
    def test_one_hunk(self):
        self.assertEqual(
            unified(OLD, NEW, "a.txt", "b.txt"),
            "--- a.txt\n+++ b.txt\n@@ -1,7 +1,8 @@\n one\n-two\n+2\n three\n four\n five\n six\n seven\n+eight\n",
        )

    def test_two_hunks(self):
        patch = unified(OLD, NEW, context=1)
        self.assertEqual([line for line in patch.split("\n") if line.startswith("@@")],
                         ["@@ -1,3 +1,3 @@", "@@ -7 +7,2 @@"])

    def test_equal_texts(self):
        self.assertEqual(unified(OLD, OLD), "")

    def test_new_file(self):
        self.assertEqual(unified("", "x\n").split("\n")[2], "@@ -0,0 +1 @@")


if __name__ == "__main__":
    unittest.main()
