"""What the teacher writes about: prompts of one's own, or prompts that it makes itself.

A file of prompts is JSON lines, as ``trbench generate`` reads it: ``{"prompt": TEXT}``, ``{"messages": [...]}`` or
``{"tokens": [...]}``, and ``"then": [TEXT, ...]``, what follows where the teacher ends.

Prompts that the teacher makes come in two rounds. In the first, it continues the beginning of a chat, up to its user's first
words, at temperature 1, and so writes the user's turn; then it answers. In the second round, it answers these turns at all
temperatures, and continues documents from their first words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np

from . import DistillError
from .data import Corpus

#: First words of a user's turn.
STARTS = (
    "Find the number of|Let $x$ be a real number|Let $n$ be a positive integer|A triangle has sides|"
    "What is the probability that|Compute the sum|How many ways are there to|Solve the equation|"
    "A sequence is defined by|Given that|Suppose that|Prove that|Calculate|A bag contains|Evaluate the integral|"
    "Find the area of|A train travels|Write a Python function|Write a program|Implement a class|How do I|What is|"
    "Explain|Write a short story about|Write a poem|Summarize the following|Rewrite|Translate|Give me|List|"
    "Can you|I want|I have a|Why|Who|When|Where|Describe|Compare|Create|Write an email|Tell me|What are the|"
    "How does|Fix the bug in this code|Here is a Python function|The following test fails|I get an error|"
    "In the file|def |import |Generate|Design|Suggest|Imagine|You are|Please|Help me|Edit|Correct|Classify|Is it|"
    "Does|Discuss|Analyze|Define|Convert|Provide"
).split("|")
#: First words of a document.
DOCUMENTS = (
    "The|In|A|This|When|It was|Once upon a time|Chapter 1|Introduction|Abstract|# |## |def |import |class |from |"
    "/*|#include|Question:|Q:|Problem:|Example|Theorem|Proof.|Let|Suppose|We|You|I|He|She|They|There|What is|"
    'How to|Why|Copyright|Dear|"|1. |- |The history of|According to|Scientists|In mathematics,|In Python,|'
    "The function|Step 1:|Recipe:"
).split("|")
#: Shares of the first round: chats without first words, chats with them. The rest are documents.
EMPTY, STARTED = 0.35, 0.45
_MARK = "<the user's turn>"


class Chat(NamedTuple):
    """The texts around a user's first turn."""

    before: str
    after: str


def chat(template: str, special: Dict[str, str]) -> Chat:
    """What a chat template puts around a user's turn, up to where the answer begins; without the end token, which the
    teacher writes itself."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.globals["raise_exception"] = refuse
    messages = [{"role": "user", "content": _MARK}]
    try:
        text = environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
    except TemplateError as error:
        raise DistillError(f"the teacher's chat template cannot be rendered: {error}") from error
    before, mark, after = text.partition(_MARK)
    if not mark or not before or not after:
        raise DistillError("the teacher's chat template has no text around a user's turn")
    end = special.get("eos_token", "")
    return Chat(before, after[len(end) :] if end and after.startswith(end) else after)


def first_round(around: Chat, count: int, seed: int) -> Iterator[Dict[str, Any]]:
    """Beginnings of chats, and first words of documents."""
    rng = np.random.default_rng(seed)
    for draw in rng.random(count):
        if draw < EMPTY + STARTED:
            start = "" if draw < EMPTY else STARTS[rng.integers(len(STARTS))]
            yield {"prompt": around.before + start, "then": [around.after]}
        else:
            yield {"prompt": DOCUMENTS[rng.integers(len(DOCUMENTS))]}


def second_round(corpus: Corpus) -> Iterator[Dict[str, Any]]:
    """The turns that the first round wrote, up to where the answer begins."""
    seen = set()
    for name, part in corpus.parts.items():
        for index in corpus.choose(name, held_out=False):
            text = part.sequence(int(index), 1 << 30)
            # The first token that is given after one that was sampled, and the first sampled one after that.
            given = np.flatnonzero((text.written[1:] == 0) & (text.written[:-1] == 1)) + 1
            answer = np.flatnonzero(text.written[given[0] :]) + given[0] if len(given) else given
            if len(answer) == 0:
                continue
            tokens = text.tokens[: answer[0]]
            if tokens.tobytes() not in seen:
                seen.add(tokens.tobytes())
                yield {"tokens": tokens.tolist()}


def read_own(path: str) -> List[Dict[str, Any]]:
    """A file of prompts of one's own."""
    prompts = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except ValueError as error:
            raise DistillError(f"{path}:{number}: {error}") from error
        if not isinstance(prompt, dict) or len({"prompt", "messages", "tokens"} & set(prompt)) != 1:
            raise DistillError(f"{path}:{number}: exactly one of `prompt`, `messages` and `tokens` is needed")
        prompts.append(prompt)
    if not prompts:
        raise DistillError(f"`{path}` has no prompts")
    return prompts


def write(path: Path, prompts: Sequence[Dict[str, Any]]) -> None:
    """Writes a file of prompts; one that is there already stays, so that data go on."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        unfinished.replace(path)
