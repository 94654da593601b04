#!/usr/bin/env python3
"""Fails when modules of a crate import each other in a circle; prints the circle, with the lines that close it. Where the
crate's `lib.rs` draws its layers, also fails when a module imports one of a higher layer, or is not in the drawing.

    python3 scripts/check_layers.py [--depth N] CRATE...

CRATE is the folder of a crate, such as `crates/trbench`. A module is a file or folder right below its `src`; with
`--depth 2` files in such a folder are modules of their own. Counted is every path that begins with `crate::`, in `use`
or in code; comments, texts and what is behind `#[cfg(test)]` are not. What stands in `lib.rs` or `main.rs` belongs to no
module.
"""

import argparse
import pathlib
import re
import sys

# Circles that are wanted: (crate, importing module, imported module), with the reason.
ALLOWED = {
    # The registry names every method, and a method is built from what the registry knows of the system.
    ("core", "routing::registry", "routing::*"),
    ("core", "routing", "routing::*"),
    ("engine", "routing::registry", "routing::*"),
    ("engine", "routing", "routing::*"),
}


def blank(match):
    """Spaces in place of a text, so that lines keep their numbers."""
    return re.sub(r"[^\n]", " ", match.group(0))


# Comments, texts, characters; a raw text ends with as many `#` as it began with.
OPAQUE = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL
)


def body_end(code, start):
    """Where the item that begins at `start` ends: after its braces, or after its semicolon."""
    depth = 0
    for at in range(start, len(code)):
        if code[at] in "{([":
            depth += 1
        elif code[at] in "})]":
            depth -= 1
            if depth == 0 and code[at] == "}":
                return at + 1
        elif code[at] == ";" and depth == 0:
            return at + 1
    return len(code)


def production(text):
    """The code without comments, texts and items for tests."""
    code = OPAQUE.sub(blank, text)
    attribute = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]")
    while match := attribute.search(code):
        end = body_end(code, match.end())
        code = code[: match.start()] + re.sub(r"[^\n]", " ", code[match.start() : end]) + code[end:]
    return code


def split_list(text):
    """Parts of a `{a, b::{c, d}}` without its outer braces."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return parts + [text[start:]]


def expand(path):
    """All paths of a `use`-like tree, as lists of segments."""
    path = path.strip()
    if "{" not in path:
        return [[part.strip() for part in path.split("::") if part.strip()]] if path else []
    head, rest = path.split("{", 1)
    prefix = [part.strip() for part in head.split("::") if part.strip()]
    inner = rest[: rest.rindex("}")] if "}" in rest else rest
    return [prefix + tail for part in split_list(inner) for tail in expand(part) or [[]]]


PATH = re.compile(r"\bcrate\s*::\s*")


def paths(code):
    """All paths below `crate::` with the line where each begins."""
    for match in PATH.finditer(code):
        at, depth = match.end(), 0
        while at < len(code):
            char = code[at]
            if char == "{":
                if depth == 0 and not code[match.end() : at].rstrip().endswith("::") and code[match.end() : at].strip():
                    break
                depth += 1
            elif char == "}":
                if depth == 0:
                    break
                depth -= 1
                if depth == 0:
                    at += 1
                    break
            elif depth == 0 and not (char.isalnum() or char in "_:" or char.isspace()):
                break
            at += 1
        text = code[match.end() : at]
        if "{" not in text:
            # `crate::a::B as C` and `crate::a::b else` end at the first space that does not touch a `::`.
            text = re.match(r"\w+(?:\s*::\s*\w+)*", text)
            text = text.group(0) if text else ""
        line = code.count("\n", 0, match.start()) + 1
        for segments in expand(text):
            yield [re.sub(r"\s+as\s+.*", "", segment, flags=re.DOTALL) for segment in segments], line


def modules(source):
    """The module path of every file: `run/mod.rs` is `run`, `run/load.rs` is `run::load`."""
    for path in sorted(source.rglob("*.rs")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        if parts and parts[-1] != "tests":
            yield path, parts


def imports(source, depth):
    """`{module: {imported module: "file:line"}}`."""
    files = [(path, parts) for path, parts in modules(source)]
    known = {"::".join(parts[:length]) for _, parts in files for length in range(1, min(depth, len(parts)) + 1)}
    graph = {name: {} for name in known}

    def module(segments):
        for length in range(min(depth, len(segments)), 0, -1):
            if "::".join(segments[:length]) in known:
                return "::".join(segments[:length])
        return None

    for path, parts in files:
        own = module(parts)
        code = production(path.read_text(encoding="utf-8"))
        if depth > 1:
            # Paths from here and from above, as if they were written from the crate's root.
            code = re.sub(r"\b((?:super\s*::\s*)+)", lambda match: above(match, parts), code)
            code = re.sub(r"\bself\s*::\s*", "crate::" + "::".join(parts) + "::", code)
        for segments, line in paths(code):
            target = module(segments)
            if target and target != own:
                graph[own].setdefault(target, f"{path}:{line}")
    return graph


def above(match, parts):
    rest = parts[: len(parts) - match.group(1).count("super")]
    lines = "\n" * match.group(1).count("\n")
    return lines + "crate::" + "".join(part + "::" for part in rest)


def allowed(crate, importer, imported):
    for owner, left, right in ALLOWED:
        matches = imported.startswith(right[:-1]) if right.endswith("*") else imported == right
        if owner == crate and left == importer and matches:
            return True
    return False


def layers(source):
    """The height of every module in the drawing of `lib.rs`; empty where there is none. A layer is a line of the block
    after `# Layers`: its name, and its modules. The highest is the first."""
    text = (source / "lib.rs").read_text(encoding="utf-8") if (source / "lib.rs").is_file() else ""
    drawing = re.search(r"//! # Layers\n.*?```text\n(.*?)//! ```", text, re.DOTALL)
    rows = [line.removeprefix("//!").split() for line in drawing.group(1).splitlines()] if drawing else []
    rows = [row[1:] for row in rows if len(row) > 1]
    return {module: -number for number, row in enumerate(rows) for module in row}


def upward(graph, heights):
    """Imports from a lower layer into a higher one, and modules without a place, in words."""
    if not heights:
        return
    for importer in sorted({name.split("::")[0] for name in graph}):
        if importer not in heights:
            yield f"module `{importer}` is not in the drawing of layers in lib.rs"
    for importer, targets in sorted(graph.items()):
        for imported, place in sorted(targets.items()):
            low, high = (heights.get(name.split("::")[0], 0) for name in (importer, imported))
            if high > low:
                yield f"{place}: `{importer}` imports `{imported}` of a higher layer"


def circle(graph):
    """Some circle as a list of modules, the first one repeated at the end; the shortest through its first module."""
    for start in sorted(graph):
        before, queue = {start: None}, [start]
        while queue:
            node = queue.pop(0)
            for target in sorted(graph[node]):
                if target == start:
                    path = [start]
                    while node is not None:
                        path.append(node)
                        node = before[node]
                    return path[::-1]
                if target not in before:
                    before[target] = node
                    queue.append(target)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crates", nargs="+", type=pathlib.Path, metavar="CRATE")
    parser.add_argument("--depth", type=int, default=1)
    args = parser.parse_args()
    failed = False
    for crate in args.crates:
        source = crate / "src"
        if not source.is_dir():
            parser.error(f"`{source}` is not a folder")
        graph = imports(source, args.depth)
        for importer, targets in graph.items():
            for imported in [name for name in targets if allowed(crate.name, importer, name)]:
                del targets[imported]
        wrong = list(upward(graph, layers(source)))
        for line in wrong:
            print(f"{crate}: {line}", file=sys.stderr)
        found = circle(graph)
        failed = failed or bool(wrong or found)
        if found:
            print(f"{crate}: modules import each other in a circle: {' -> '.join(found)}", file=sys.stderr)
            for importer, imported in zip(found, found[1:]):
                print(f"    {graph[importer][imported]}: `{importer}` imports `{imported}`", file=sys.stderr)
        elif not wrong:
            print(f"{crate}: {len(graph)} modules, no circle")
    sys.exit(failed)


if __name__ == "__main__":
    main()
