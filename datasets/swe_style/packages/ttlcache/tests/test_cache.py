import unittest

from ttlcache import ManualClock, TTLCache


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.cache = TTLCache(3, 10.0, self.clock)

    def test_set_and_get(self):
        self.cache["a"] = 1
        self.assertEqual(self.cache["a"], 1)
        self.assertIn("a", self.cache)
        self.assertIsNone(self.cache.get("b"))
        with self.assertRaises(KeyError):
            self.cache["b"]

    def test_expiry(self):
        self.cache["a"] = 1
        self.clock.advance(9.5)
        self.assertEqual(self.cache.get("a"), 1)
        self.clock.advance(0.5)
        self.assertIsNone(self.cache.get("a"))
        self.assertEqual(self.cache.stats.expirations, 1)

    def test_own_ttl(self):
        self.cache.set("a", 1, ttl=2.0)
        self.cache.set("b", 2, ttl=20.0)
        self.clock.advance(15)
        self.assertEqual(self.cache.items(), [("b", 2)])

    def test_least_recently_used_goes_first(self):
        for key in "abc":
            self.cache[key] = key.upper()
        self.cache.get("a")
        self.cache["d"] = "D"
        self.assertEqual([key for key, _ in self.cache.items()], ["c", "a", "d"])
        self.assertEqual(self.cache.stats.evictions, 1)

    def test_peek_changes_nothing(self):
        for key in "abc":
            self.cache[key] = key
        self.assertEqual(self.cache.peek("a"), "a")
        self.cache["d"] = "d"
        self.assertNotIn("a", self.cache)
        self.assertEqual(self.cache.stats.requests, 0)

    def test_delete_and_pop(self):
        self.cache["a"] = 1
        del self.cache["a"]
        with self.assertRaises(KeyError):
            del self.cache["a"]
        self.assertEqual(self.cache.pop("a", 7), 7)

    def test_bad_arguments(self):
        with self.assertRaisesRegex(ValueError, "maxsize must be at least 1, got 0"):
            TTLCache(0, 1.0)
        with self.assertRaisesRegex(ValueError, "ttl must be above 0, got -1"):
            self.cache.set("a", 1, ttl=-1)

    def test_stats_text(self):
        self.cache["a"] = 1
        self.cache.get("a")
        self.cache.get("b")
        self.assertEqual(str(self.cache.stats), "2 requests, 50.0% hits, 0 evictions, 0 expirations")


if __name__ == "__main__":
    unittest.main()
