import unittest

from mdtable import Table, TableError, format_text, parse, render


class ParseTest(unittest.TestCase):
    def test_plain(self):
        table = parse("| a | b |\n|---|--:|\n| 1 | 2 |\n")
        self.assertEqual((table.header, table.alignments, table.rows), (["a", "b"], ["none", "right"], [["1", "2"]]))

    def test_without_outer_bars(self):
        self.assertEqual(parse("a | b\n:-|:-:\nx | y").alignments, ["left", "center"])

    def test_rows_are_fitted(self):
        self.assertEqual(parse("|a|b|\n|-|-|\n|1|\n|1|2|3|").rows, [["1", ""], ["1", "2"]])

    def test_bars_in_cells(self):
        self.assertEqual(parse("|a|b|\n|-|-|\n|x \\| y|`p|q`|").rows, [["x | y", "`p|q`"]])

    def test_not_a_table(self):
        for text in ["", "a | b", "a | b\nc | d", "|a|b|\n|---|"]:
            with self.assertRaises(TableError, msg=text):
                parse(text)


class RenderTest(unittest.TestCase):
    def test_alignment(self):
        table = Table(["left", "mid", "right"], ["left", "center", "right"], [["a", "b", "c"]])
        self.assertEqual(render(table),
                         "| left | mid | right |\n|:-----|:---:|------:|\n| a    |  b  |     c |\n")

    def test_from_dicts(self):
        table = Table.from_dicts([{"name": "x", "n": 1}, {"name": "y", "n": 20}])
        self.assertEqual(render(table), "| name |   n |\n|------|----:|\n| x    |   1 |\n| y    |  20 |\n")

    def test_sort(self):
        table = Table(["n"], rows=[["10"], ["9"], ["1,000"]])
        table.sort("n")
        self.assertEqual(table.column("n"), ["9", "10", "1,000"])

    def test_long_cells_are_cut(self):
        self.assertIn("| abcd… |", render(Table(["h"], rows=[["abcdefgh"]]), max_width=5))

    def test_bad_alignment(self):
        with self.assertRaisesRegex(ValueError, "alignment 'middle' is not allowed"):
            Table(["a"], ["middle"])


class DocumentTest(unittest.TestCase):
    def test_text_around_stays(self):
        text = "# Title\n\n|a|b|\n|-|-|\n|long cell|x|\n\nEnd | of text\n"
        self.assertEqual(
            format_text(text),
            "# Title\n\n| a         | b   |\n|-----------|-----|\n| long cell | x   |\n\nEnd | of text\n",
        )

    def test_fenced_code_stays(self):
        text = "```\n|a|b|\n|-|-|\n```\n"
        self.assertEqual(format_text(text), text)


if __name__ == "__main__":
    unittest.main()
