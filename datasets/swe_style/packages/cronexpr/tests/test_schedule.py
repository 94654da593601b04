import unittest
from datetime import datetime

from cronexpr import Schedule, explain


class NextTest(unittest.TestCase):
    def next(self, text, *moment):
        return Schedule.parse(text).next(datetime(*moment))

    def test_every_minute(self):
        self.assertEqual(self.next("* * * * *", 2024, 3, 1, 12, 0, 30), datetime(2024, 3, 1, 12, 1))

    def test_same_hour(self):
        self.assertEqual(self.next("*/15 * * * *", 2024, 3, 1, 12, 16), datetime(2024, 3, 1, 12, 30))

    def test_next_day(self):
        self.assertEqual(self.next("30 6 * * *", 2024, 3, 1, 6, 30), datetime(2024, 3, 2, 6, 30))

    def test_weekdays(self):
        self.assertEqual(self.next("0 9 * * mon-fri", 2024, 3, 1, 17, 0), datetime(2024, 3, 4, 9, 0))

    def test_months(self):
        self.assertEqual(self.next("0 0 1 6 *", 2024, 7, 1), datetime(2025, 6, 1))

    def test_leap_day(self):
        self.assertEqual(self.next("0 0 29 2 *", 2024, 3, 1), datetime(2028, 2, 29))

    def test_never(self):
        self.assertIsNone(self.next("0 0 30 2 *", 2024, 1, 1))

    def test_shortcuts(self):
        self.assertEqual(self.next("@monthly", 2024, 1, 15), datetime(2024, 2, 1))


class MoreTest(unittest.TestCase):
    def test_upcoming(self):
        times = Schedule.parse("0 */12 * * *").upcoming(datetime(2024, 3, 1, 1), 3)
        self.assertEqual(times, [datetime(2024, 3, 1, 12), datetime(2024, 3, 2), datetime(2024, 3, 2, 12)])

    def test_between(self):
        times = Schedule.parse("0 12 * * *").between(datetime(2024, 3, 1, 12), datetime(2024, 3, 3, 12))
        self.assertEqual(times, [datetime(2024, 3, 1, 12), datetime(2024, 3, 2, 12)])

    def test_matches(self):
        self.assertTrue(Schedule.parse("5 4 * * sun").matches(datetime(2024, 3, 3, 4, 5)))
        self.assertFalse(Schedule.parse("5 4 * * sun").matches(datetime(2024, 3, 4, 4, 5)))

    def test_explain(self):
        self.assertEqual(explain("0 9 * * mon-fri"),
                         "at 09:00, on Monday, Tuesday, Wednesday, Thursday and Friday")
        self.assertEqual(explain("*/30 * 1 jan *"), "at minute 0 and 30 of every hour, on day 1 of the month, in January")


if __name__ == "__main__":
    unittest.main()
