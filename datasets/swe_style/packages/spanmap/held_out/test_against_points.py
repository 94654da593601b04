import random
import unittest

from spanmap import SpanMap, SpanSet


class BruteForceTest(unittest.TestCase):
    def test_assignments_and_deletions(self):
        random.seed(7)
        for _ in range(300):
            m, points = SpanMap(), {}
            for _ in range(12):
                start = random.randrange(20)
                end = start + random.randrange(1, 9)
                value = random.choice(["a", "b", None])
                if value is None:
                    del m[start:end]
                    for x in range(start, end):
                        points.pop(x, None)
                else:
                    m[start:end] = value
                    points.update((x, value) for x in range(start, end))
                self.assertEqual({x: m[x] for x in range(30) if x in m}, points)
                for (_, e, v), (s, _, w) in zip(list(m), list(m)[1:]):
                    self.assertTrue(e < s or (e == s and v != w), f"not joined: {m}")

    def test_parts_and_gaps(self):
        m = SpanMap([(0, 4, "a"), (4, 6, "b"), (9, 12, "c")])
        self.assertEqual(m.overlapping(4, 9), [(4, 6, "b")])
        self.assertEqual(m.gaps(4, 9), [(6, 9)])
        self.assertEqual(m.gaps(6, 9), [(6, 9)])
        self.assertEqual(m.gaps(1, 5), [])

    def test_sets(self):
        random.seed(8)
        make = lambda: SpanSet([(s, s + random.randrange(1, 5)) for s in random.sample(range(20), 4)])
        members = lambda s: {x for x in range(30) if x in s}
        for _ in range(300):
            a, b = make(), make()
            self.assertEqual(members(a & b), members(a) & members(b))
            self.assertEqual(members(a ^ b), members(a) ^ members(b))


if __name__ == "__main__":
    unittest.main()
