"""What the agent of a session can do: a shell, and three ways of talking to it.

`bash`    one fenced shell command per turn;
`xml`     function calls: `bash` and an editor that views, creates and replaces;
`window`  shell commands and a file viewer that shows a window of a file, with edits by line numbers.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = "/testbed"
SECONDS = 60


class ToolError(Exception):
    """An action that the session's style does not have, or that cannot be carried out."""


class Shell:
    """Runs commands in a package's directory and removes from their output what differs from run to run."""

    def __init__(self, root, scratch):
        self.root = pathlib.Path(root)
        self.environment = {
            "PATH": f"{scratch}/bin{os.pathsep}{os.environ['PATH']}",
            "HOME": str(scratch),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PAGER": "cat",
            "COLUMNS": "80",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "1",
            "PYTHON_COLORS": "0",
            # Marks under the source lines of tracebacks came with Python 3.11 and changed since.
            "PYTHONNODEBUGRANGES": "1",
            "NO_COLOR": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_DEFAULT_HASH": "sha1",
            "GIT_AUTHOR_NAME": "Developer",
            "GIT_AUTHOR_EMAIL": "developer@example.org",
            "GIT_AUTHOR_DATE": "2024-03-01T12:00:00 +0000",
            "GIT_COMMITTER_NAME": "Developer",
            "GIT_COMMITTER_EMAIL": "developer@example.org",
            "GIT_COMMITTER_DATE": "2024-03-01T12:00:00 +0000",
        }

    @staticmethod
    def prepare(scratch):
        """Make `python` mean the interpreter that runs this program."""
        folder = scratch / "bin"
        folder.mkdir()
        for name in ("python", "python3"):
            shim = folder / name
            shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
            shim.chmod(0o755)

    def run(self, command):
        """Exit status and output (both streams) of a command."""
        # Scripts name the project's place as the agent sees it.
        command = command.replace(ROOT, str(self.root))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, self.clean(done.stdout.decode("utf-8", "replace"))

    def clean(self, text):
        """Paths, durations, addresses, and what Python versions print differently."""
        text = text.replace(str(self.root), ROOT)
        text = re.sub(r"^(Ran \d+ tests? in )[\d.]+s$", r"\g<1>0.004s", text, flags=re.M)
        text = re.sub(r"\b0x[0-9a-f]{8,}\b", "0x7f0000000000", text)
        # The library's own frames have other line numbers in each version.
        frame = r'^( +)File "/[^"]*/lib(?:64)?/python3[^"]*/([\w.]+\.py)", line \d+'
        text = re.sub(frame, r'\1File "<python>/\2", line 1', text, flags=re.M)
        # Before 3.11 unittest named the class only.
        return re.sub(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)$", full_name, text, flags=re.M)

    def path(self, name):
        """A file of the project by the name that the agent uses."""
        return self.root / name.replace(ROOT + "/", "")


def full_name(match):
    """A line of unittest with the method in the dotted name."""
    method, place = match.groups()
    return match.group(0) if place.split(".")[-1] == method else f"{match.group(0)[:-1]}.{method})"


class BashTool:
    """One shell command per turn, in a fenced block."""

    def __init__(self, shell):
        self.shell = shell
        self.status = 0

    def render(self, verb, argument, body):
        """The action as the assistant writes it."""
        return f"```bash\n{'submit' if verb == 'submit' else body}\n```"

    def act(self, verb, argument, body):
        """Carry the action out."""
        if verb != "bash":
            raise ToolError(f"style `bash` has no `{verb}`")
        self.status, output = self.shell.run(body)
        return output

    def observe(self, output):
        """The observation as the environment writes it."""
        return f"<exit_code>{self.status}</exit_code>\n<output>\n{output}\n</output>"


def numbered(lines, first=1):
    """Lines with their numbers, as `cat -n` prints them."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))


def halves(body):
    """The two texts of a `<<<<`, `====`, `>>>>` block."""
    match = re.fullmatch(r"<<<<\n(.*?)\n?====\n(.*?)\n?>>>>", body, flags=re.S)
    if match is None:
        raise ToolError("expected a `<<<<`, `====`, `>>>>` block")
    return match.groups()


class XmlTool(BashTool):
    """Function calls: `bash`, and an `editor` with view, create, replace and insert."""

    def render(self, verb, argument, body):
        if verb == "submit":
            return "<function=submit>\n</function>"
        if verb == "bash":
            return self.call("bash", {"command": body})
        parts = argument.split()
        fields = {"command": verb, "path": f"{ROOT}/{parts[0]}"}
        if verb == "view" and len(parts) == 3:
            fields["range"] = f"[{parts[1]}, {parts[2]}]"
        elif verb == "create":
            fields["text"] = body
        elif verb == "replace":
            fields["old"], fields["new"] = halves(body)
        elif verb == "insert":
            fields["line"], fields["text"] = parts[1], body
        return self.call("editor", fields)

    @staticmethod
    def call(function, fields):
        """A function call with its parameters."""
        lines = [f"<parameter={name}>{value}</parameter>" for name, value in fields.items()]
        return "\n".join([f"<function={function}>", *lines, "</function>"])

    def act(self, verb, argument, body):
        if verb == "bash":
            return super().act(verb, argument, body)
        parts = argument.split()
        path = self.shell.path(parts[0])
        if verb == "create":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body + "\n", encoding="utf-8")
            return f"Created {ROOT}/{parts[0]} with {len(body.splitlines())} lines."
        if not path.is_file():
            return f"Error: there is no file {ROOT}/{parts[0]}."
        text = path.read_text(encoding="utf-8")
        if verb == "view":
            first, last = (int(parts[1]), int(parts[2])) if len(parts) == 3 else (1, len(text.splitlines()))
            return f"{ROOT}/{parts[0]}:\n{numbered(text.splitlines()[first - 1 : last], first)}"
        if verb == "replace":
            return self.replace(path, parts[0], text, *halves(body))
        if verb == "insert":
            lines = text.splitlines(keepends=True)
            at = int(parts[1])
            path.write_text("".join(lines[:at]) + body + "\n" + "".join(lines[at:]), encoding="utf-8")
            return self.excerpt(path, parts[0], at + 1, len(body.splitlines()))
        raise ToolError(f"style `xml` has no `{verb}`")

    def replace(self, path, name, text, old, new):
        """Replace a text that must be there exactly once."""
        count = text.count(old)
        if count != 1:
            found = f"Error: the old text was found {count} times in {ROOT}/{name}"
            return f"{found}, it must be there exactly once. Nothing was changed."
        path.write_text(text.replace(old, new), encoding="utf-8")
        return self.excerpt(path, name, text[: text.index(old)].count("\n") + 1, len(new.splitlines()))

    @staticmethod
    def excerpt(path, name, first, count):
        """What an edit looks like in its surroundings."""
        lines = path.read_text(encoding="utf-8").splitlines()
        start, end = max(first - 4, 1), min(first + count + 3, len(lines))
        return f"{ROOT}/{name} was edited. Lines {start} to {end} now:\n{numbered(lines[start - 1 : end], start)}"

    def observe(self, output):
        return f"OBSERVATION:\n{output}"


class WindowTool(BashTool):
    """Shell commands, and a viewer that shows a part of one open file."""

    SIZE = 60

    def __init__(self, shell):
        super().__init__(shell)
        self.name = None
        self.top = 1

    def render(self, verb, argument, body):
        if verb == "bash":
            return f"```\n{body}\n```"
        line = f"{verb} {argument}".strip()
        if verb == "edit":
            return f"```\n{line}\n{body}\nend_of_edit\n```"
        return f"```\n{line}\n```"

    def act(self, verb, argument, body):
        if verb == "bash":
            return super().act(verb, argument, body)
        parts = argument.split()
        if verb == "open":
            if not self.shell.path(parts[0]).is_file():
                return f"There is no file {parts[0]}."
            self.name = parts[0]
            self.top = self.centred(int(parts[1])) if len(parts) > 1 else 1
            return self.window()
        if verb == "search_dir":
            place = parts[1] if len(parts) > 1 else "."
            search = f"grep -rn --include='*.py' -e {shlex.quote(parts[0])} {place} | LC_ALL=C sort -t: -k1,1 -k2,2n"
            return self.shell.run(search)[1] or f"No line contains {parts[0]}."
        if verb == "find_file":
            search = f"find . -name {shlex.quote(parts[0])} -not -path './.git/*' | LC_ALL=C sort"
            return self.shell.run(search)[1] or f"No file is called {parts[0]}."
        if self.name is None:
            return "No file is open."
        if verb == "goto":
            self.top = self.centred(int(argument))
        elif verb == "scroll_down":
            self.top = min(self.top + self.SIZE - 5, max(1, len(self.lines()) - 5))
        elif verb == "scroll_up":
            self.top = max(1, self.top - self.SIZE + 5)
        elif verb == "edit":
            return self.edit(argument, body)
        else:
            raise ToolError(f"style `window` has no `{verb}`")
        return self.window()

    def centred(self, line):
        """The first line of a window with `line` in its middle."""
        return max(1, min(line - self.SIZE // 2, max(1, len(self.lines()) - self.SIZE + 1)))

    def lines(self):
        """Lines of the open file."""
        return self.shell.path(self.name).read_text(encoding="utf-8").splitlines()

    def window(self):
        """The part of the open file that is shown."""
        lines = self.lines()
        end = min(len(lines), self.top + self.SIZE - 1)
        shown = [f"{number}:{lines[number - 1]}" for number in range(self.top, end + 1)]
        above = [f"({self.top - 1} more lines above)"] if self.top > 1 else []
        below = [f"({len(lines) - end} more lines below)"] if end < len(lines) else []
        return "\n".join([f"[File: {ROOT}/{self.name} ({len(lines)} lines total)]", *above, *shown, *below])

    def edit(self, span, body):
        """Replace a range of lines, unless the file would no longer be valid Python."""
        first, last = map(int, span.split(":"))
        old = self.lines()
        new = old[: first - 1] + body.splitlines() + old[last:]
        text = "\n".join(new) + "\n"
        if self.name.endswith(".py"):
            try:
                compile(text, self.name, "exec")
            except SyntaxError as error:
                wrong = f"with this edit, line {error.lineno} of the file would be a syntax error"
                return f"Nothing was changed: {wrong}. Check the range and the indentation."
        self.shell.path(self.name).write_text(text, encoding="utf-8")
        self.top = self.centred(first)
        return f"{self.window()}\nThe file was changed. Look at the result: indentation, repeated or missing lines."

    def observe(self, output):
        place = f"{ROOT}/{self.name}" if self.name else "none"
        return f"{output}\n(Open file: {place})\n(Current directory: {ROOT})\nbash-$"


def make_tool(style, shell):
    """The tool of a session's style."""
    kinds = {"bash": BashTool, "xml": XmlTool, "window": WindowTool}
    if style not in kinds:
        raise ToolError(f"style `{style}` is not known, allowed are {', '.join(kinds)}")
    return kinds[style](shell)
