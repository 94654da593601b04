import unittest

from ttlcache import ManualClock, TTLCache, cached


class ReplaceTest(unittest.TestCase):
    def test_setting_a_key_again_makes_it_recent(self):
        cache = TTLCache(2, 10.0, ManualClock())
        cache["a"] = 1
        cache["b"] = 2
        cache["a"] = 3
        cache["c"] = 4
        self.assertEqual(cache.items(), [("a", 3), ("c", 4)])
        self.assertEqual(cache.stats.evictions, 1)

    def test_replacing_in_a_full_cache_drops_nothing(self):
        cache = TTLCache(2, 10.0, ManualClock())
        cache["a"] = 1
        cache["b"] = 2
        cache["b"] = 5
        self.assertEqual(cache.items(), [("a", 1), ("b", 5)])
        self.assertEqual(cache.stats.evictions, 0)


class RoomTest(unittest.TestCase):
    def test_expired_entries_go_before_live_ones(self):
        clock = ManualClock()
        cache = TTLCache(3, 10.0, clock)
        cache["old"] = 0
        cache.set("short", 1, ttl=1.0)
        cache["new"] = 2
        clock.advance(2)
        cache["more"] = 3
        self.assertEqual([key for key, _ in cache.items()], ["old", "new", "more"])
        self.assertEqual((cache.stats.evictions, cache.stats.expirations), (0, 1))


class KeyTest(unittest.TestCase):
    def test_keyword_order_does_not_matter(self):
        calls = []

        @cached()
        def f(**kwargs):
            calls.append(kwargs)
            return len(calls)

        self.assertEqual(f(a=1, b=2), f(b=2, a=1))
        self.assertEqual(len(calls), 1)

    def test_positional_pairs_are_not_keywords(self):
        @cached()
        def f(*args, **kwargs):
            return args, kwargs

        self.assertEqual(f(("a", 1)), ((("a", 1),), {}))
        self.assertEqual(f(a=1), ((), {"a": 1}))

    def test_none_is_a_result(self):
        calls = []

        @cached()
        def f():
            calls.append(1)

        f()
        f()
        self.assertEqual(len(calls), 1)

    def test_typed(self):
        @cached(typed=True)
        def kind(value):
            return type(value).__name__

        self.assertEqual((kind(1), kind(1.0), kind(True)), ("int", "float", "bool"))


if __name__ == "__main__":
    unittest.main()
