import unittest

from semrange import Version, VersionError, outdated, sort_versions


class VersionTest(unittest.TestCase):
    def test_parse_and_print(self):
        for text in ["0.0.0", "1.2.3", "10.20.30", "1.0.0-alpha.1", "1.0.0+build.7", "1.0.0-rc.1+x-y"]:
            self.assertEqual(str(Version.parse(text)), text)

    def test_not_versions(self):
        for text in ["", "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "a.b.c", "1.2.3.4"]:
            with self.assertRaises(VersionError, msg=text):
                Version.parse(text)

    def test_order_of_releases(self):
        self.assertLess(Version.parse("1.9.0"), Version.parse("1.10.0"))
        self.assertLess(Version.parse("1.0.0-rc.1"), Version.parse("1.0.0"))

    def test_build_does_not_count(self):
        self.assertEqual(Version.parse("1.0.0+a"), Version.parse("1.0.0+b"))

    def test_bump(self):
        version = Version.parse("1.2.3")
        self.assertEqual([str(version.bump(part)) for part in ("major", "minor", "patch")], ["2.0.0", "1.3.0", "1.2.4"])
        self.assertEqual(str(Version.parse("2.0.0-rc.1").bump("major")), "2.0.0")

    def test_sort(self):
        self.assertEqual([str(v) for v in sort_versions(["1.10.0", "1.2.0", "1.9.9"])], ["1.2.0", "1.9.9", "1.10.0"])

    def test_outdated(self):
        found = outdated({"a": "1.0.0", "b": "2.0.0"}, {"a": ["1.1.0", "1.2.0-rc.1"], "b": ["2.0.0"]})
        self.assertEqual(found, {"a": (Version.parse("1.0.0"), Version.parse("1.1.0"))})


if __name__ == "__main__":
    unittest.main()
