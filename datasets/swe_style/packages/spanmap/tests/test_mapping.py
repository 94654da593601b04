import unittest

from spanmap import Span, SpanMap


class LookupTest(unittest.TestCase):
    def setUp(self):
        self.map = SpanMap([(0, 10, "a"), (10, 20, "b"), (30, 40, "c")])

    def test_points(self):
        self.assertEqual([self.map.get(x) for x in (-1, 0, 9, 10, 19, 20, 30, 39, 40)],
                         [None, "a", "a", "b", "b", None, "c", "c", None])
        self.assertIn(5, self.map)
        with self.assertRaises(KeyError):
            self.map[25]

    def test_overlapping(self):
        self.assertEqual(self.map.overlapping(5, 35), [(5, 10, "a"), (10, 20, "b"), (30, 35, "c")])

    def test_gaps(self):
        self.assertEqual(self.map.gaps(-5, 50), [Span(-5, 0), Span(20, 30), Span(40, 50)])

    def test_total(self):
        rates = SpanMap([(0, 100, 0.5), (100, 200, 0.25)])
        self.assertEqual(rates.total(50, 150), 50 * 0.5 + 50 * 0.25)


class AssignTest(unittest.TestCase):
    def test_middle_is_cut_out(self):
        m = SpanMap([(0, 10, "a")])
        m[3:5] = "b"
        self.assertEqual(list(m), [(0, 3, "a"), (3, 5, "b"), (5, 10, "a")])

    def test_several_are_covered(self):
        m = SpanMap([(0, 10, "a"), (10, 20, "b"), (20, 30, "c")])
        m[5:25] = "x"
        self.assertEqual(list(m), [(0, 5, "a"), (5, 25, "x"), (25, 30, "c")])

    def test_equal_neighbours_are_joined(self):
        m = SpanMap([(0, 10, "a"), (20, 30, "a")])
        m[10:20] = "a"
        self.assertEqual(list(m), [(0, 30, "a")])

    def test_delete(self):
        m = SpanMap([(0, 10, "a")])
        del m[2:4]
        self.assertEqual(list(m), [(0, 2, "a"), (4, 10, "a")])

    def test_bad_keys(self):
        m = SpanMap()
        for key in (slice(None, 3), slice(3, 3), slice(5, 1), slice(0, 4, 2)):
            with self.assertRaises(ValueError):
                m[key] = 1
        with self.assertRaises(TypeError):
            m[3] = 1

    def test_repr(self):
        self.assertEqual(repr(SpanMap([(0, 1, "x")])), "SpanMap({[0, 1): 'x'})")


if __name__ == "__main__":
    unittest.main()
