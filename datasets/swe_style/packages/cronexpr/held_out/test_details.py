import unittest
from datetime import datetime, timedelta

from cronexpr import Schedule
from cronexpr.fields import HOUR, MINUTE, WEEKDAY, parse_field


class SundayTest(unittest.TestCase):
    def test_zero_and_seven(self):
        for text in ["0", "7", "sun"]:
            self.assertEqual(parse_field(WEEKDAY, text).values, (0,), text)

    def test_ranges_to_sunday(self):
        self.assertEqual(parse_field(WEEKDAY, "fri-sun").values, (0, 5, 6))
        self.assertEqual(parse_field(WEEKDAY, "5-7").values, (0, 5, 6))
        self.assertEqual(parse_field(WEEKDAY, "0-6").values, (0, 1, 2, 3, 4, 5, 6))

    def test_schedule(self):
        times = Schedule.parse("0 8 * * 7").upcoming(datetime(2024, 3, 1), 2)
        self.assertEqual(times, [datetime(2024, 3, 3, 8), datetime(2024, 3, 10, 8)])


class EitherDayTest(unittest.TestCase):
    def test_both_restricted_means_either(self):
        times = Schedule.parse("0 0 13 * fri").upcoming(datetime(2024, 9, 1), 4)
        self.assertEqual([t.day for t in times], [6, 13, 20, 27])
        times = Schedule.parse("0 0 15 * mon").upcoming(datetime(2024, 9, 1), 6)
        self.assertEqual([t.day for t in times], [2, 9, 15, 16, 23, 30])

    def test_a_star_with_a_step_is_a_star(self):
        times = Schedule.parse("0 0 */2 * mon").upcoming(datetime(2024, 9, 1), 2)
        self.assertEqual([t.day for t in times], [9, 23])


class BruteForceTest(unittest.TestCase):
    def test_next_agrees_with_matches(self):
        for text in ["7 */5 * * *", "59 23 31 * *", "0 0 1-7 * 1", "10,20 8-9 * 2,11 *", "5/25 3/7 * * 6"]:
            schedule = Schedule.parse(text)
            start = datetime(2023, 11, 27, 22, 58)
            moment, found = start, None
            while found is None:
                moment += timedelta(minutes=1)
                found = moment if schedule.matches(moment) else None
            self.assertEqual(schedule.next(start), found, text)

    def test_open_steps(self):
        self.assertEqual(parse_field(MINUTE, "5/25").values, (5, 30, 55))
        self.assertEqual(parse_field(HOUR, "20/2").values, (20, 22))


class EarlierHourTest(unittest.TestCase):
    def test_minutes_start_again_in_a_later_hour(self):
        self.assertEqual(Schedule.parse("5 9 * * *").next(datetime(2024, 3, 1, 8, 40)), datetime(2024, 3, 1, 9, 5))


if __name__ == "__main__":
    unittest.main()
