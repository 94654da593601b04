import random
import unittest

from minipatch import apply, edits, parse, reverse, unified


class NewlineTest(unittest.TestCase):
    def test_missing_at_the_end(self):
        for old, new in [("a\nb", "a\nb\n"), ("a\nb\n", "a\nb"), ("a", "b"), ("", "x"), ("x", ""), ("a\nb", "a\nc")]:
            patch = unified(old, new)
            self.assertEqual(apply(old, patch), new, repr((old, new)))
            self.assertEqual(apply(new, reverse(patch)), old, repr((old, new)))

    def test_other_separators_stay_inside_lines(self):
        old, new = "a\x0cb\r\nc\n", "a\x0cb\r\nd\n"
        patch = unified(old, new)
        self.assertEqual(apply(old, patch), new)
        self.assertEqual(patch.split("\n")[2:4], ["@@ -1,2 +1,2 @@", " a\x0cb\r"])


class RandomTest(unittest.TestCase):
    def test_round_trips(self):
        random.seed(11)
        for _ in range(400):
            old = "".join(random.choice("abc") + "\n" for _ in range(random.randrange(14)))
            new = "".join(random.choice("abc") + "\n" for _ in range(random.randrange(14)))
            for context in (0, 1, 3):
                patch = unified(old, new, context=context)
                self.assertEqual(apply(old, patch), new)
                self.assertEqual(apply(new, reverse(patch)), old)

    def test_as_short_as_the_longest_common_subsequence(self):
        random.seed(12)
        for _ in range(200):
            a = [random.choice("ab") for _ in range(random.randrange(9))]
            b = [random.choice("ab") for _ in range(random.randrange(9))]
            table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
            for i, x in enumerate(a):
                for j, y in enumerate(b):
                    table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            self.assertEqual(sum(e.op != " " for e in edits(a, b)), len(a) + len(b) - 2 * table[-1][-1])


class HunkTest(unittest.TestCase):
    def test_touching_hunks_are_one(self):
        old = "".join(f"{n}\n" for n in range(20))
        new = old.replace("5\n", "five\n", 1).replace("\n8\n", "\neight\n")
        self.assertEqual(len(parse(unified(old, new, context=1))), 1)
        self.assertEqual(len(parse(unified(old, new, context=0))), 2)

    def test_later_hunks_follow_the_move(self):
        old = "start\nmark\nend\n" + "start\nbody\nend\n" * 5
        lines = old.split("\n")
        lines[1] = "changed"
        lines[10] = "also changed"
        patch = unified(old, "\n".join(lines), context=1)
        moved = "intro\n" * 4 + old
        self.assertEqual(apply(moved, patch), "intro\n" * 4 + "\n".join(lines))

    def test_lines_that_look_like_headers(self):
        old, new = "-- a\nx\n", "++ b\nx\n"
        patch = unified(old, new)
        self.assertEqual(apply(old, patch), new)


if __name__ == "__main__":
    unittest.main()
