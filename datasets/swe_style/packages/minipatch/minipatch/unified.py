"""The unified format."""

import re
from dataclasses import dataclass, field

from .lcs import Edit, edits

HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
NO_NEWLINE = "\\ No newline at end of file"


@dataclass
class Hunk:
    """A part of a patch. Starts count from 1; a start of 0 goes with a count of 0 at the top of a file."""

    old_start: int
    new_start: int
    edits: list = field(default_factory=list)

    @property
    def old_lines(self):
        """What must be there before."""
        return [edit.line for edit in self.edits if edit.op != "+"]

    @property
    def new_lines(self):
        """What is there afterwards."""
        return [edit.line for edit in self.edits if edit.op != "-"]

    def header(self):
        """The line that starts with `@@`."""
        old, new = len(self.old_lines), len(self.new_lines)
        return f"@@ -{span(self.old_start, old)} +{span(self.new_start, new)} @@"


def span(start, count):
    """A start and a count as they are written: a count of one is left out."""
    return str(start) if count == 1 else f"{start},{count}"


def split_lines(text):
    """Lines with their newlines; unlike `str.splitlines`, only `\\n` ends a line."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def hunks_of(items, context):
    """Group edits into hunks with so many unchanged lines around them; hunks that would touch become one."""
    changed = [i for i, edit in enumerate(items) if edit.op != " "]
    groups = []
    for i in changed:
        low, high = max(0, i - context), min(len(items), i + context + 1)
        if groups and low <= groups[-1][1]:
            groups[-1][1] = high
        else:
            groups.append([low, high])
    result = []
    for low, high in groups:
        old_before = sum(edit.op != "+" for edit in items[:low])
        new_before = sum(edit.op != "-" for edit in items[:low])
        part = items[low:high]
        has_old = any(edit.op != "+" for edit in part)
        has_new = any(edit.op != "-" for edit in part)
        result.append(Hunk(old_before + has_old, new_before + has_new, part))
    return result


def unified(old, new, old_name="a", new_name="b", context=3):
    """The patch from one text to another; empty if they are equal."""
    hunks = hunks_of(edits(split_lines(old), split_lines(new)), context)
    if not hunks:
        return ""
    lines = [f"--- {old_name}", f"+++ {new_name}"]
    for hunk in hunks:
        lines.append(hunk.header())
        for op, line in hunk.edits:
            lines.append(op + line.rstrip("\n"))
            if not line.endswith("\n"):
                lines.append(NO_NEWLINE)
    return "\n".join(lines) + "\n"


def parse(text):
    """The hunks of a patch."""
    hunks = []
    for line in text.split("\n"):
        match = HEADER.match(line)
        if match:
            hunks.append(Hunk(int(match.group(1)), int(match.group(3))))
        elif hunks and line == NO_NEWLINE:
            op, content = hunks[-1].edits[-1]
            hunks[-1].edits[-1] = Edit(op, content.removesuffix("\n"))
        elif hunks and line[:1] in (" ", "-", "+"):
            if line:
                hunks[-1].edits.append(Edit(line[0], line[1:] + "\n"))
    return hunks


def reverse(text):
    """The patch in the other direction."""
    swap = {"-": "+", "+": "-", " ": " "}
    hunks = []
    for hunk in parse(text):
        hunks.append(Hunk(hunk.new_start, hunk.old_start, [Edit(swap[op], line) for op, line in hunk.edits]))
    names = re.findall(r"^(?:---|\+\+\+) (.*)$", text.split("@@", 1)[0], flags=re.M)
    lines = [f"--- {names[1]}", f"+++ {names[0]}"] if len(names) == 2 else []
    for hunk in hunks:
        lines.append(hunk.header())
        for op, line in hunk.edits:
            lines.append(op + line.rstrip("\n"))
            if not line.endswith("\n"):
                lines.append(NO_NEWLINE)
    return "\n".join(lines) + "\n"
