import unittest

from spanmap import SpanSet


class SetTest(unittest.TestCase):
    def test_add_joins(self):
        s = SpanSet([(0, 5), (8, 10)])
        s.add(5, 8)
        self.assertEqual(list(s), [(0, 10)])

    def test_union_and_difference(self):
        a, b = SpanSet([(0, 10)]), SpanSet([(5, 15)])
        self.assertEqual(a | b, SpanSet([(0, 15)]))
        self.assertEqual(a - b, SpanSet([(0, 5)]))

    def test_intersection(self):
        a, b = SpanSet([(0, 10), (20, 30)]), SpanSet([(5, 25)])
        self.assertEqual(a & b, SpanSet([(5, 10), (20, 25)]))

    def test_length(self):
        self.assertEqual(SpanSet([(0, 2), (4, 7)]).length, 5)


if __name__ == "__main__":
    unittest.main()
