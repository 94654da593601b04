import unittest

import inikit


class ParserTest(unittest.TestCase):
    def test_sections_and_keys(self):
        document = inikit.loads("a = 1\n[one]\nb: 2\n[two]\nc=3\n")
        self.assertEqual(document.to_dict(), {"": {"a": "1"}, "one": {"b": "2"}, "two": {"c": "3"}})

    def test_keys_ignore_case_and_keep_spelling(self):
        section = inikit.loads("[s]\nUserName = ada\n")["s"]
        self.assertEqual(section["username"], "ada")
        self.assertEqual(list(section), ["UserName"])

    def test_comment_lines(self):
        self.assertEqual(inikit.loads("# a\n; b\n[s] ; c\nk = v\n").to_dict(), {"s": {"k": "v"}})

    def test_comment_after_a_value(self):
        section = inikit.loads("[s]\nport = 80 ; the web\nname = x # y\n")["s"]
        self.assertEqual(section["port"], "80")
        self.assertEqual(section["name"], "x")

    def test_continuation_lines(self):
        section = inikit.loads("[s]\npaths = /usr\n    /opt\n  /srv\nnext = 1\n")["s"]
        self.assertEqual(section["paths"], "/usr\n/opt\n/srv")
        self.assertEqual(section["next"], "1")

    def test_quotes(self):
        section = inikit.loads('[s]\nk = "  a ; b \\"c\\" "  # note\n')["s"]
        self.assertEqual(section["k"], '  a ; b "c" ')

    def test_errors_have_line_numbers(self):
        for text, line in [("[s\n", 1), ("[s]\nnothing\n", 2), ('[s]\n\nk = "open\n', 3), ("= 1\n", 1)]:
            with self.assertRaises(inikit.ParseError) as caught:
                inikit.loads(text)
            self.assertEqual(caught.exception.line, line)


class WriterTest(unittest.TestCase):
    def test_plain_values(self):
        document = inikit.loads("a=1\n[s]\nb: two words\n")
        self.assertEqual(inikit.dumps(document), "a = 1\n\n[s]\nb = two words\n")

    def test_quotes_where_needed(self):
        document = inikit.Document()
        document.section("s")["k"] = " padded"
        self.assertEqual(inikit.dumps(document), '[s]\nk = " padded"\n')

    def test_delete(self):
        document = inikit.loads("[s]\nA = 1\nb = 2\n")
        del document["s"]["a"]
        self.assertEqual(inikit.dumps(document), "[s]\nb = 2\n")


if __name__ == "__main__":
    unittest.main()
