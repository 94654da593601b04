import unittest

from cronexpr import CronError, Schedule
from cronexpr.fields import DAY, HOUR, MINUTE, MONTH, WEEKDAY, parse_field


class FieldTest(unittest.TestCase):
    def values(self, kind, text):
        return list(parse_field(kind, text).values)

    def test_numbers_lists_ranges(self):
        self.assertEqual(self.values(MINUTE, "5"), [5])
        self.assertEqual(self.values(HOUR, "1,3,9-11"), [1, 3, 9, 10, 11])

    def test_steps(self):
        self.assertEqual(self.values(MINUTE, "*/20"), [0, 20, 40])
        self.assertEqual(self.values(HOUR, "8-18/5"), [8, 13, 18])

    def test_names(self):
        self.assertEqual(self.values(MONTH, "jan,DEC"), [1, 12])
        self.assertEqual(self.values(WEEKDAY, "mon-wed"), [1, 2, 3])

    def test_star(self):
        self.assertEqual(len(self.values(DAY, "*")), 31)
        self.assertEqual(self.values(WEEKDAY, "*"), [0, 1, 2, 3, 4, 5, 6])

    def test_errors(self):
        for kind, text in [(MINUTE, "60"), (HOUR, "x"), (DAY, "0"), (DAY, "9-3"), (MINUTE, "*/0"), (MONTH, "")]:
            with self.assertRaises(CronError, msg=text):
                parse_field(kind, text)
        with self.assertRaisesRegex(CronError, "has 4 fields, expected 5"):
            Schedule.parse("* * * *")


if __name__ == "__main__":
    unittest.main()
