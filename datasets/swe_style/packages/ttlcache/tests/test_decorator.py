import unittest

from ttlcache import ManualClock, cached


class CachedTest(unittest.TestCase):
    def setUp(self):
        self.calls = []
        self.clock = ManualClock()

        @cached(maxsize=4, ttl=5.0, clock=self.clock)
        def area(width, height=1):
            self.calls.append((width, height))
            return width * height

        self.area = area

    def test_second_call_is_remembered(self):
        self.assertEqual(self.area(2, height=3), 6)
        self.assertEqual(self.area(2, height=3), 6)
        self.assertEqual(self.calls, [(2, 3)])

    def test_results_expire(self):
        self.area(2)
        self.clock.advance(5)
        self.area(2)
        self.assertEqual(len(self.calls), 2)

    def test_name_is_kept(self):
        self.assertEqual(self.area.__name__, "area")

    def test_errors_are_not_remembered(self):
        @cached(clock=self.clock)
        def fail():
            self.calls.append("fail")
            raise RuntimeError("no")

        for _ in range(2):
            with self.assertRaises(RuntimeError):
                fail()
        self.assertEqual(self.calls, ["fail", "fail"])


if __name__ == "__main__":
    unittest.main()
