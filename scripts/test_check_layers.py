"""Tests of check_layers.py: `python3 -m unittest scripts/test_check_layers.py`."""

import pathlib
import tempfile
import unittest

import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers  # noqa: E402

DRAWING = """//! # Layers
//! ```text
//! edge    cli
//!   |
//! basics  files error
//! ```
"""


class Crate(unittest.TestCase):
    def graph(self, files, depth=1):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = pathlib.Path(folder.name)
        for name, text in files.items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        graph = check_layers.imports(self.source, depth)
        return graph, {name: sorted(targets) for name, targets in graph.items()}

    def test_paths_of_code_are_counted_and_no_others(self):
        text = """
            use crate::{files, error::{self, usage as wrong}}; // crate::cli
            /* crate::cli */ const TEXT: &str = "crate::cli \\" crate::cli";
            fn f<'a>(x: &'a str) -> crate::sums::Sum { crate::lists::f::<'a', {1}>(x, r#"crate::cli"#) }
            #[cfg(test)]
            mod tests { fn g() { crate::cli::run() } }
            #[cfg(test)]
            #[path = "x.rs"]
            mod crate_cli;
        """
        names = ["files", "error", "sums", "lists", "cli"]
        graph, found = self.graph({"a/mod.rs": text, "lib.rs": "use crate::cli::Cli;"} | {f"{n}.rs": "" for n in names})
        self.assertEqual(found["a"], ["error", "files", "lists", "sums"])
        self.assertTrue(graph["a"]["files"].endswith("mod.rs:2"))

    def test_a_circle_is_found_with_its_lines(self):
        files = {"a.rs": "use crate::b::B;", "b/mod.rs": "", "b/deep.rs": "\nuse crate::c;", "c.rs": "fn f() { crate::a::g() }"}
        graph, _ = self.graph(files)
        self.assertEqual(check_layers.circle(graph), ["a", "b", "c", "a"])
        self.assertTrue(graph["b"]["c"].endswith("deep.rs:2"))
        files["c.rs"] = ""
        self.assertIsNone(check_layers.circle(self.graph(files)[0]))

    def test_parts_of_a_module_can_be_checked_as_well(self):
        files = {"a/mod.rs": "mod x; mod y;", "a/x.rs": "use super::y::Y;", "a/y.rs": "use crate::a::x::X;"}
        self.assertIsNone(check_layers.circle(self.graph(files)[0]))
        self.assertEqual(check_layers.circle(self.graph(files, 2)[0]), ["a::x", "a::y", "a::x"])

    def test_a_low_module_must_not_import_a_high_one(self):
        files = {"lib.rs": DRAWING, "cli.rs": "use crate::error;", "error.rs": "", "files.rs": "use crate::error;"}
        graph, _ = self.graph(files)
        self.assertEqual(list(check_layers.upward(graph, check_layers.layers(self.source))), [])
        files |= {"error.rs": "use crate::cli::Cli;", "new.rs": ""}
        graph, _ = self.graph(files)
        found = list(check_layers.upward(graph, check_layers.layers(self.source)))
        self.assertEqual(found[0], "module `new` is not in the drawing of layers in lib.rs")
        self.assertIn("`error` imports `cli` of a higher layer", found[1])


if __name__ == "__main__":
    unittest.main()
