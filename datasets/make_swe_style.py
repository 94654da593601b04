#!/usr/bin/env python3
"""Make `swe_style.jsonl`: agentic coding sessions in the public SWE-smith trajectory schema.

`swe_style/packages/` holds small Python packages with tests and a list of bugs, `swe_style/sessions/` holds one script
per session: an issue text, then thoughts and actions. This program injects the bug, *executes* every action in a
temporary copy of the package, and records what really came out. Nothing in an observation is written by hand.

    python3 datasets/make_swe_style.py            write swe_style.jsonl
    python3 datasets/make_swe_style.py --check    compare with the committed file, exit 1 if it differs
    python3 datasets/make_swe_style.py --stats    print counts and lengths of the committed file

Needs Python 3.9 or newer, git, bash, grep, sed and find; nothing else.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "swe_style"
TARGET = HERE / "swe_style.jsonl"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCES))

from tools import Shell, ToolError, make_tool  # noqa: E402  (found next to the data, whatever the working directory is)

NO_OUTPUT = "(the command succeeded and printed nothing)"
LIMIT = 8000


class ScriptError(Exception):
    """A session script or a package that does not do what it says."""


def parse_session(path):
    """The header fields, the issue and the steps `(thought, action, argument, body)` of a session script."""
    head, *sections = re.split(r"^---- (.*)\n", path.read_text(encoding="utf-8"), flags=re.M)
    fields = dict(line.split(": ", 1) for line in head.strip().splitlines())
    parts = [(sections[i].strip(), sections[i + 1].strip("\n")) for i in range(0, len(sections), 2)]
    if not parts or parts[0][0] != "issue":
        raise ScriptError(f"{path.name}: the first section must be `issue`")
    steps = []
    rest = iter(parts[1:])
    for name, thought in rest:
        if name != "thought":
            raise ScriptError(f"{path.name}: expected `thought`, found `{name}`")
        action, body = next(rest, (None, None))
        if action is None:
            raise ScriptError(f"{path.name}: a thought without an action")
        verb, _, argument = action.partition(" ")
        steps.append((thought, verb, argument, body))
    return {**fields, "name": path.stem, "issue": parts[0][1], "steps": steps}


def parse_bugs(package):
    """`{name: (file, right, wrong)}` from a package's `bugs.txt`."""
    text = (package / "bugs.txt").read_text(encoding="utf-8")
    form = r"^==== (\S+) (\S+)\n<<<<\n(.*?)^----\n(.*?)^>>>>\n"
    return {name: (file, right, wrong) for name, file, right, wrong in re.findall(form, text, flags=re.M | re.S)}


def lay_out(package, root, held_out=False):
    """Copy a package into `root`, without its bugs and, unless asked for, without the tests kept from the agent."""
    hidden = shutil.ignore_patterns("bugs.txt", "held_out", "__pycache__")
    shutil.copytree(package, root, ignore=hidden, dirs_exist_ok=True)
    if held_out:
        for test in sorted((package / "held_out").glob("test_*.py")):
            shutil.copy(test, root / "tests" / test.name)


def tests_pass(shell):
    """Whether the package's tests pass in the shell's directory."""
    return shell.run("python -m unittest discover -s tests -t .")[0] == 0


def check_package(package, scratch):
    """The package as written passes everything; each bug applies once and fails a test that the agent cannot see."""
    root = scratch / f"check-{package.name}"
    lay_out(package, root, held_out=True)
    shell = Shell(root, scratch)
    status, output = shell.run("python -m unittest discover -s tests -t .")
    if status != 0:
        raise ScriptError(f"{package.name}: its own tests fail\n{output}")
    for bug, (file, right, wrong) in parse_bugs(package).items():
        source = root / file
        text = source.read_text(encoding="utf-8")
        if text.count(right) != 1:
            count = text.count(right)
            raise ScriptError(f"{package.name}, bug `{bug}`: its text is {count} times in {file}, expected 1")
        source.write_text(text.replace(right, wrong), encoding="utf-8")
        if tests_pass(shell):
            raise ScriptError(f"{package.name}, bug `{bug}`: no test fails")
        source.write_text(text, encoding="utf-8")


def commit(shell):
    """Make the package a git repository with one commit; returns the commit's id."""
    commands = ["git init -q -b main .", "git add -A", "git commit -q -m 'Initial import'", "git rev-parse HEAD"]
    status, output = shell.run(" && ".join(commands))
    if status != 0:
        raise ScriptError(f"git failed:\n{output}")
    return output.strip()


def play(session, scratch):
    """Run one session and return its record."""
    package = SOURCES / "packages" / session["package"]
    file, right, wrong = parse_bugs(package)[session["bug"]]
    root = scratch / session["name"]
    lay_out(package, root)
    source = root / file
    source.write_text(source.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    shell = Shell(root, scratch)
    head = commit(shell)
    tool = make_tool(session["style"], shell)
    prompts = SOURCES / "prompts"
    opening = (prompts / f"{session['style']}_task.txt").read_text(encoding="utf-8").strip("\n")
    system = (prompts / f"{session['style']}_system.txt").read_text(encoding="utf-8").strip("\n")
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": opening.replace("{issue}", session["issue"])},
    ]
    for number, (thought, verb, argument, body) in enumerate(session["steps"], 1):
        messages.append({"role": "assistant", "content": thought + "\n\n" + tool.render(verb, argument, body)})
        if verb == "submit":
            break
        try:
            output = tool.act(verb, argument, body)
        except ToolError as error:
            raise ScriptError(f"{session['name']}, step {number}: {error}") from error
        if len(output) > LIMIT:
            half = LIMIT // 2
            output = f"{output[:half]}\n[... {len(output) - LIMIT} characters left out ...]\n{output[-half:]}"
        messages.append({"role": "user", "content": tool.observe(output.strip("\n") or NO_OUTPUT)})
    if messages[-1]["role"] == "user":
        messages.pop()
    _, patch = shell.run("git add -A && git diff --cached")
    lay_out(package_tests(package), root / "tests")
    resolved = tests_pass(Shell(root, scratch))
    if resolved != (session["resolved"] == "yes"):
        raise ScriptError(f"{session['name']}: resolved is {resolved}, the script says {session['resolved']}")
    instance = f"{session['package']}.{head[:8]}.bug__{session['bug']}"
    digest = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()[:8]
    return {
        "messages": messages,
        "instance_id": instance,
        "resolved": resolved,
        "model": "scripted",
        "traj_id": f"{instance}.{digest}",
        "patch": patch,
    }


def package_tests(package):
    """A folder with all tests of a package, the held-out ones among them."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ["TRS_SCRATCH"]))
    shutil.copytree(package / "tests", folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for test in (package / "held_out").glob("test_*.py"):
        shutil.copy(test, folder / test.name)
    return folder


def generate(only=None):
    """All sessions, as the text of the JSONL file."""
    sessions = [parse_session(path) for path in sorted((SOURCES / "sessions").glob("*.txt"))]
    if only:
        sessions = [session for session in sessions if only in session["name"]]
    with tempfile.TemporaryDirectory(prefix="trs-") as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        scratch = pathlib.Path(folder).resolve()
        os.environ["TRS_SCRATCH"] = str(scratch)
        Shell.prepare(scratch)
        names = sorted({session["package"] for session in sessions})
        checks = [pool.submit(check_package, SOURCES / "packages" / name, scratch) for name in names]
        records = list(pool.map(lambda session: play(session, scratch), sessions))
        for check in checks:
            check.result()
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def difference(committed, made):
    """Where two versions of the file differ first, in words."""
    old, new = ([json.loads(line) for line in text.splitlines()] for text in (committed, made))
    if len(old) != len(new):
        return f"{len(old)} sessions are committed, {len(new)} were made"
    for a, b in zip(old, new):
        for key in sorted(set(a) | set(b), key=lambda key: key != "messages"):
            if a.get(key) == b.get(key):
                continue
            if key != "messages":
                return f"{b['instance_id']}: `{key}` differs:\n  committed: {a.get(key)!r}\n  made:      {b.get(key)!r}"
            for number, (x, y) in enumerate(zip(a[key], b[key])):
                if x != y:
                    texts = f"--- committed\n{x['content']}\n--- made\n{y['content']}"
                    return f"{b['instance_id']}: message {number} differs:\n{texts}"
            return f"{b['instance_id']}: {len(a[key])} messages are committed, {len(b[key])} were made"
    return "the same records, written differently"


def stats(text):
    """Counts and lengths of the file, as lines of text."""
    records = [json.loads(line) for line in text.splitlines()]
    turns, last_inputs, answers, observations, patches = [], [], [], [], []
    for record in records:
        messages = record["messages"]
        mine = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        turns.append(len(mine))
        last_inputs.append(sum(len(message["content"]) for message in messages[: mine[-1]]))
        answers.extend(len(messages[i]["content"]) for i in mine)
        observations.extend(len(message["content"]) for message in messages[3:] if message["role"] == "user")
        patches.append(len(record["patch"]))
    packages = {record["instance_id"].split(".")[0] for record in records}
    resolved = sum(record["resolved"] for record in records)
    lines = [
        f"sessions: {len(records)} over {len(packages)} packages, {resolved} resolved, {len(records) - resolved} not",
        f"assistant turns: {sum(turns)}",
        f"file: {len(text.encode())} bytes",
        "",
        "| | least | median | mean | most |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, values in [
        ("turns of a session", turns),
        ("characters before the last turn", last_inputs),
        ("characters of an assistant turn", answers),
        ("characters of an observation", observations),
        ("characters of a patch", patches),
    ]:
        middle = int(statistics.median_low(values))
        lines.append(f"| {name} | {min(values)} | {middle} | {statistics.mean(values):.0f} | {max(values)} |")
    return "\n".join(lines)


def main():
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description="Make swe_style.jsonl by executing the session scripts.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    group.add_argument("--stats", action="store_true", help="print counts and lengths of the committed file")
    group.add_argument("--show", metavar="TEXT", help="print the sessions whose names contain TEXT, for reading")
    args = parser.parse_args()
    if args.stats:
        print(stats(TARGET.read_text(encoding="utf-8")))
        return 0
    missing = [tool for tool in ("git", "bash", "grep", "sed", "find") if shutil.which(tool) is None]
    if missing:
        print(f"error: not found on PATH: {', '.join(missing)}", file=sys.stderr)
        return 2
    try:
        made = generate(args.show)
    except ScriptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.show:
        for record in map(json.loads, made.splitlines()):
            for message in record["messages"]:
                print(f"######## {message['role']}\n{message['content']}")
            print(f"######## {record['traj_id']} resolved: {record['resolved']}\n{record['patch']}")
        return 0
    if not args.check:
        TARGET.write_text(made, encoding="utf-8")
        print(stats(made))
        return 0
    committed = TARGET.read_text(encoding="utf-8")
    if committed != made:
        print(f"error: {TARGET.name} is not what its sources make: {difference(committed, made)}", file=sys.stderr)
        return 1
    print(f"{TARGET.name}: as made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
