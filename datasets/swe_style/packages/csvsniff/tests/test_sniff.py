import datetime
import unittest

from csvsniff import Dialect, column_types, read_typed, sniff


class SniffTest(unittest.TestCase):
    def test_delimiters(self):
        for delimiter in ",;\t|":
            text = f"name{delimiter}n\nada{delimiter}1\nbob{delimiter}2\n"
            self.assertEqual(sniff(text), Dialect(delimiter, header=True), repr(delimiter))

    def test_commas_in_quotes_do_not_count(self):
        text = 'name;place\n"Doe, Jane";"Bern, CH"\n"Roe, Rick";"Ulm, DE"\n'
        self.assertEqual(sniff(text).delimiter, ";")

    def test_no_header(self):
        self.assertFalse(sniff("1,2\n3,4\n").header)
        self.assertFalse(sniff("a,b\nc,d\n").header)

    def test_single_quotes(self):
        self.assertEqual(sniff("'a,x','b'\n'c','d'\n").quote, "'")

    def test_decimal_comma(self):
        self.assertTrue(sniff("item;price\ntea;1,50\nbun;0,80\n").decimal_comma)
        self.assertFalse(sniff("item;price\ntea;1.50\n").decimal_comma)


class TypesTest(unittest.TestCase):
    def test_columns(self):
        rows = [["1", "1.5", "yes", "2024-02-29", "x"], ["-2", "3", "no", "2024-03-01", "7"]]
        self.assertEqual(column_types(rows), ["int", "float", "bool", "date", "str"])

    def test_leading_zeros_are_codes(self):
        self.assertEqual(column_types([["007"], ["010"]]), ["str"])

    def test_read_typed(self):
        text = "name,born,score\nada,1815-12-10,9.5\nbob,,n/a\n"
        self.assertEqual(
            read_typed(text),
            [
                {"name": "ada", "born": datetime.date(1815, 12, 10), "score": 9.5},
                {"name": "bob", "born": None, "score": None},
            ],
        )


if __name__ == "__main__":
    unittest.main()
