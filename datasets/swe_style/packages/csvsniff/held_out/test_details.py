import unittest

from csvsniff import Dialect, column_types, read, read_typed, sniff
from csvsniff.reader import write


class ReaderTest(unittest.TestCase):
    def test_empty_quoted_cells_are_cells(self):
        self.assertEqual(read('""\n"",""\n'), [[""], ["", ""]])
        self.assertEqual(read('a\n""'), [["a"], [""]])

    def test_lines_inside_quotes_count(self):
        with self.assertRaisesRegex(ValueError, "line 4: unexpected"):
            read('"a\nb\nc",1\n"x"y\n')

    def test_quotes_inside_plain_cells(self):
        self.assertEqual(read('5" pipe,6\n'), [['5" pipe', "6"]])

    def test_round_trip_with_carriage_returns(self):
        self.assertEqual(write([["a\rb", "c"]]), '"a\rb",c\n')


class HeaderTest(unittest.TestCase):
    def test_missing_values_do_not_hide_the_type(self):
        self.assertTrue(sniff("name,age\nada,36\nbob,\ncleo,n/a\n").header)

    def test_a_column_of_gaps_is_no_evidence(self):
        self.assertFalse(sniff("a,b\nc,\nd,\n").header)

    def test_short_rows(self):
        self.assertTrue(sniff("name,age\nada,36\nbob\ncleo,41\n").header)


class DelimiterTest(unittest.TestCase):
    def test_times_do_not_win(self):
        text = "start,end,what\n09:00,10:30,standup\n11:15,12:00,review\n"
        self.assertEqual(sniff(text).delimiter, ",")

    def test_one_ragged_row(self):
        text = "a;b;c\n1;2;3\n4;5;6\n7;8\n9;10;11\n"
        self.assertEqual(sniff(text).delimiter, ";")

    def test_prose_in_a_cell(self):
        text = "id|note\n1|well, that, is, it\n2|no\n3|yes, maybe\n"
        self.assertEqual(sniff(text).delimiter, "|")


class TypesTest(unittest.TestCase):
    def test_mixed_numbers_are_floats(self):
        self.assertEqual(column_types([["1"], ["2.5"], [""]]), ["float"])
        self.assertEqual(column_types([["1"], ["yes"]]), ["str"])
        self.assertEqual(column_types([["a", ""], ["b", "-"]]), ["str", "none"])

    def test_decimal_comma_values(self):
        rows = read_typed("item;price\ntea;1,50\nbun;2\n")
        self.assertEqual([row["price"] for row in rows], [1.5, 2.0])

    def test_dates_that_do_not_exist(self):
        self.assertEqual(column_types([["2023-02-29"]]), ["str"])

    def test_rows_longer_than_the_header(self):
        rows = read_typed("a,b\n1,2\n3,4,5\n", Dialect(header=True))
        self.assertEqual(rows[1], {"a": 3, "b": 4, "column 3": 5})
        self.assertIsNone(rows[0]["column 3"])


if __name__ == "__main__":
    unittest.main()
