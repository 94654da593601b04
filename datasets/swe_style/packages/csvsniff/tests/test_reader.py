import unittest

from csvsniff import CsvError, Dialect, read
from csvsniff.reader import write


class ReadTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(read("a,b\n1,2\n"), [["a", "b"], ["1", "2"]])

    def test_without_a_last_newline(self):
        self.assertEqual(read("a,b\n1,2"), [["a", "b"], ["1", "2"]])

    def test_empty_cells_and_lines(self):
        self.assertEqual(read("a,,\n\n,b,\n"), [["a", "", ""], ["", "b", ""]])

    def test_quotes(self):
        self.assertEqual(read('"a,b","c ""d"""\n"two\nlines",x\n'), [["a,b", 'c "d"'], ["two\nlines", "x"]])

    def test_line_ends(self):
        self.assertEqual(read("a\r\nb\rc\n"), [["a"], ["b"], ["c"]])

    def test_errors(self):
        with self.assertRaisesRegex(CsvError, "line 2: a quoted cell is not closed"):
            read('a\n"b\nc\n')
        with self.assertRaisesRegex(CsvError, "line 1: unexpected 'x' after a closing quote"):
            read('"a"x,b\n')

    def test_write(self):
        rows = [["a", "b;c"], ['say "hi"', "two\nlines"]]
        dialect = Dialect(";")
        self.assertEqual(read(write(rows, dialect), dialect), rows)

    def test_bad_dialect(self):
        with self.assertRaisesRegex(ValueError, "delimiter and quote are both"):
            Dialect("'", "'")


if __name__ == "__main__":
    unittest.main()
