import unittest

from mdtable import Table, format_text, pad, parse, render, shorten, width


class WideTest(unittest.TestCase):
    def test_combining_marks_take_no_column(self):
        self.assertEqual(width("cafe\u0301"), 4)
        self.assertEqual(width("a\u200db"), 2)
        self.assertEqual(pad("e\u0301", 3), "e\u0301  ")

    def test_columns_line_up(self):
        table = Table(["city", "n"], rows=[["東京", "1"], ["cafe\u0301", "2"], ["Oslo", "3"]])
        lines = render(table).splitlines()
        self.assertEqual({width(line) for line in lines}, {width(lines[0])})
        self.assertEqual(lines[2], "| 東京 | 1   |")

    def test_shorten_counts_columns(self):
        self.assertEqual(shorten("東京都庁", 5), "東京…")
        self.assertEqual(shorten("東京都庁", 6), "東京…")
        self.assertEqual(shorten("東京", 4), "東京")


class EscapeTest(unittest.TestCase):
    def test_round_trip(self):
        for cell in ["a|b", "`a|b`", "`a|b` c|d", "``", "x|`", "tick ` and | bar"]:
            table = Table(["h", "k"], rows=[[cell, "z"]])
            self.assertEqual(parse(render(table)).rows[0][0], cell, cell)


class DocumentTest(unittest.TestCase):
    def test_fences_of_the_other_kind_do_not_close(self):
        text = "~~~\n```\n|a|b|\n|-|-|\n~~~\n\n|c|d|\n|-|-|"
        self.assertEqual(format_text(text), "~~~\n```\n|a|b|\n|-|-|\n~~~\n\n| c   | d   |\n|-----|-----|")

    def test_indented_tables_keep_their_indent(self):
        self.assertEqual(format_text("  |a|\n  |-|\n  |b|"), "  | a   |\n  |-----|\n  | b   |")

    def test_formatting_twice_changes_nothing(self):
        text = "x\n\n|a|b|\n|:-|-:|\n|東|1|\n|y \\| z|22|\n\n|k|\n|-|\n"
        once = format_text(text)
        self.assertEqual(format_text(once), once)


class SortTest(unittest.TestCase):
    def test_text_without_regard_to_case(self):
        table = Table(["n"], rows=[["b"], ["A"], ["c"]])
        table.sort("n")
        self.assertEqual(table.column("n"), ["A", "b", "c"])

    def test_empty_cells_of_number_columns(self):
        self.assertEqual(Table.from_dicts([{"a": 1}, {"b": 2}]).alignments, ["right", "right"])


if __name__ == "__main__":
    unittest.main()
