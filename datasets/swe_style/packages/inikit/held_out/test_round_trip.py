import unittest

import inikit


class RoundTripTest(unittest.TestCase):
    def test_values_come_back(self):
        values = ["", "plain", " left", "right ", "a\nb", "a\n\nb", "tab\there", '"quoted"', "back\\slash",
                  "x ; y", "x;y", "# start", "a \\n b ; c", '" open']
        document = inikit.Document()
        for number, value in enumerate(values):
            document.section("s")[f"k{number}"] = value
        again = inikit.loads(inikit.dumps(document))
        self.assertEqual(list(again["s"].items()), list(document["s"].items()))


class CommentTest(unittest.TestCase):
    def test_comment_characters_inside_words(self):
        section = inikit.loads("[s]\ncolour = ff#00ff # magenta\nurl = http://h/p;v=1?x#frag\nempty = # nothing\n")["s"]
        self.assertEqual(section["colour"], "ff#00ff")
        self.assertEqual(section["url"], "http://h/p;v=1?x#frag")
        self.assertEqual(section["empty"], "")


class NestedTest(unittest.TestCase):
    def test_references_resolve_where_they_are_written(self):
        text = "[paths]\nroot = /srv\nlogs = ${root}/logs\n[app]\nroot = /app\nfile = ${paths:logs}/app.log\n"
        self.assertEqual(inikit.expand(inikit.loads(text))["app"]["file"], "/srv/logs/app.log")

    def test_the_same_key_twice_is_not_a_circle(self):
        text = "[s]\na = 1\nb = ${a}${a}\nc = ${b}-${a}\n"
        self.assertEqual(inikit.expand(inikit.loads(text))["s"]["c"], "11-1")

    def test_circles_are_found_whatever_the_case(self):
        with self.assertRaisesRegex(inikit.InterpolationError, "circular"):
            inikit.expand(inikit.loads("[s]\na = ${B}\nb = ${A}\n"))


if __name__ == "__main__":
    unittest.main()
