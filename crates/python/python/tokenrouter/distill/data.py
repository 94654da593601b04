"""The teacher's text: folders of ``part-*.safetensors``, as ``trbench generate`` writes them.

``tokens`` i32 ``[N]``, the sequences one after the other; ``offsets`` i64 ``[S + 1]``, where they begin and end; ``written``
u8 ``[N]``, 1 where the teacher sampled the token; ``temperature`` f32 ``[S]``; ``top_ids`` i32 ``[N, K]`` and
``top_logprobs`` f16 ``[N, K]``: the likeliest tokens after each token, over the whole vocabulary and at temperature 1.
"""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import DistillError

#: Sequences that begin with the same tokens, this many, are all trained on or all held out.
SAME_BEGINNING = 48
#: The least probability that is assumed outside the likeliest tokens, which are stored in f16.
LEAST_REST = 1e-5
SHAPES = {"tokens": 1, "offsets": 1, "written": 1, "temperature": 1, "top_ids": 2, "top_logprobs": 2}


class Text(NamedTuple):
    """One sequence of ``n`` tokens."""

    tokens: np.ndarray
    written: np.ndarray
    temperature: float
    top_ids: np.ndarray
    top_logprobs: np.ndarray


class Part:
    """One file. Its large tensors stay on disk."""

    def __init__(self, path: Path, vocab: int) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            self.file = safe_open(str(path), framework="np")
            small = {name: self.file.get_tensor(name) for name in ("tokens", "offsets", "written", "temperature")}
            self.large = {name: self.file.get_slice(name) for name in ("top_ids", "top_logprobs")}
        except (SafetensorError, OSError) as error:
            raise DistillError(f"`{path}` is no data of `trbench generate`: {error}") from error
        self.tokens, self.offsets = small["tokens"], small["offsets"]
        self.written, self.temperature = small["written"], small["temperature"]
        self.metadata: Dict[str, str] = dict(self.file.metadata() or {})
        n, shape = len(self.tokens), self.large["top_ids"].get_shape()
        sizes = (len(self.written), len(self.temperature) + 1, shape, self.large["top_logprobs"].get_shape())
        wanted = (n, len(self.offsets), [n, shape[-1]], [n, shape[-1]])
        if sizes != wanted:
            raise DistillError(f"`{path}`: sizes are {sizes}, they must be {wanted}")
        if self.offsets[0] != 0 or self.offsets[-1] != n or np.any(np.diff(self.offsets) < 1):
            raise DistillError(f"`{path}`: `offsets` must ascend from 0 to {n}")
        if n and not 0 <= self.tokens.min() <= self.tokens.max() < vocab:
            raise DistillError(f"`{path}`: `tokens` reach {self.tokens.max()}, allowed are ids below {vocab}")

    def __len__(self) -> int:
        return len(self.temperature)

    def sequence(self, index: int, length: int) -> Text:
        """The first ``length`` tokens of a sequence."""
        begin, end = int(self.offsets[index]), int(self.offsets[index + 1])
        end = min(end, begin + length)
        top = [self.large[name][begin:end] for name in ("top_ids", "top_logprobs")]
        return Text(self.tokens[begin:end], self.written[begin:end], float(self.temperature[index]), *top)

    def held_out(self, index: int, one_of: int) -> bool:
        """Whether a sequence is held out: of beginnings, one of ``one_of``."""
        begin, end = int(self.offsets[index]), int(self.offsets[index + 1])
        beginning = self.tokens[begin : min(end, begin + SAME_BEGINNING)]
        return zlib.crc32(beginning.astype("<i4").tobytes()) % one_of == 0


class Corpus:
    """The files of folders, in the order in which they were found. Files may be added while it is used."""

    def __init__(self, folders: Sequence[str], vocab: int, one_of: Optional[int] = None) -> None:
        self.folders, self.vocab, self.one_of = [Path(folder) for folder in folders], vocab, one_of
        self.parts: Dict[str, Part] = {}
        for folder in self.folders:
            if not folder.is_dir():
                raise DistillError(f"the folder of data `{folder}` does not exist")
        self.refresh()

    def refresh(self, strict: bool = True) -> List[str]:
        """Looks for new files; returns their names. Unless ``strict``, files that cannot be read are left for the next time,
        with a warning: they may be in the middle of being copied, and a long run should not end for that."""
        found = sorted(path for folder in self.folders for path in folder.glob("**/part-*.safetensors"))
        new = []
        for path in found:
            if str(path) in self.parts:
                continue
            try:
                self.parts[str(path)] = Part(path, self.vocab)
                new.append(str(path))
            except DistillError as error:
                if strict:
                    raise
                warnings.warn(f"left out for now: {error}", stacklevel=2)
        return new

    def empty(self) -> DistillError:
        return DistillError(f"no text to train on in {', '.join(f'`{folder}`' for folder in self.folders)}")

    def tokens(self) -> int:
        return sum(len(part.tokens) for part in self.parts.values())

    def choose(self, name: str, held_out: bool) -> np.ndarray:
        """Sequences of a file: those to train on, or those held out. Without ``one_of``, all are both."""
        part = self.parts[name]
        if self.one_of is None:
            return np.arange(len(part))
        return np.array([i for i in range(len(part)) if part.held_out(i, self.one_of) == held_out], dtype=np.int64)

    def held_out(self, length: int, most: int) -> Iterator[Text]:
        """Up to ``most`` held-out sequences, in the order of the files."""
        left = most
        for name in self.parts:
            for index in self.choose(name, held_out=True)[:left]:
                left -= 1
                yield self.parts[name].sequence(int(index), length)


class Batch(NamedTuple):
    """Sequences packed into rows of one length. ``M`` positions hold tokens."""

    tokens: np.ndarray  #: ``[B, T]``, 0 where nothing is
    positions: np.ndarray  #: ``[B, T]``, from 0 in every sequence
    segments: np.ndarray  #: ``[B, T]``, number of the sequence in its row, -1 where nothing is
    used: np.ndarray  #: ``[M]``, indices into ``B * T``
    top_ids: np.ndarray  #: ``[M, K]``
    top_logprobs: np.ndarray  #: ``[M, K]``
    sequences: List[Text]  #: in the order of ``used``


def pack(rows: Sequence[Sequence[Text]], length: int) -> Batch:
    """Puts the sequences of every row one after the other."""
    shape = (len(rows), length)
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, -1, np.int64)
    for row, sequences in enumerate(rows):
        at = 0
        for number, sequence in enumerate(sequences):
            place = slice(at, at + len(sequence.tokens))
            tokens[row, place], segments[row, place] = sequence.tokens, number
            positions[row, place] = np.arange(len(sequence.tokens))
            at = place.stop
    flat = [sequence for sequences in rows for sequence in sequences]
    used = np.flatnonzero(segments.ravel() >= 0)
    top = [np.concatenate([getattr(sequence, name) for sequence in flat]) for name in ("top_ids", "top_logprobs")]
    return Batch(tokens, positions, segments, used, top[0], top[1], flat)


class Sampler:
    """Draws sequences to train on: of those that were used least often, any. What it does next is a function of its state."""

    def __init__(self, corpus: Corpus, rows: int, length: int, seed: int) -> None:
        self.corpus, self.rows, self.length = corpus, rows, length
        self.rng = np.random.default_rng(seed)
        self.places: List[Tuple[str, int]] = []
        self.uses = np.zeros(0, np.int64)
        self.carried: Optional[Tuple[str, int]] = None
        self.add(list(corpus.parts))

    def add(self, names: List[str]) -> None:
        """Takes new files. They count as used as often as the rest, so that they do not come again and again."""
        new = [(name, int(index)) for name in names for index in self.corpus.choose(name, held_out=False)]
        least = int(self.uses.min()) if len(self.uses) else 0
        self.places += new
        self.uses = np.concatenate([self.uses, np.full(len(new), least, np.int64)])

    def refresh(self) -> None:
        self.add(self.corpus.refresh(strict=False))

    def draw(self) -> Tuple[str, int]:
        if not self.places:
            raise self.corpus.empty()
        least = np.flatnonzero(self.uses == self.uses.min())
        chosen = int(least[self.rng.integers(len(least))])
        self.uses[chosen] += 1
        return self.places[chosen]

    def batch(self) -> Batch:
        rows: List[List[Text]] = [[]]
        free = self.length
        while True:
            place = self.carried or self.draw()
            sequence = self.corpus.parts[place[0]].sequence(place[1], self.length)
            self.carried = None
            if len(sequence.tokens) > free:
                if len(rows) == self.rows:
                    self.carried = place
                    return pack(rows, self.length)
                rows.append([])
                free = self.length
            rows[-1].append(sequence)
            free -= len(sequence.tokens)

    def state(self) -> Dict[str, Any]:
        return {
            "rng": self.rng.bit_generator.state,
            "parts": list(self.corpus.parts),
            "uses": self.uses.tolist(),
            "carried": self.carried,
        }

    def restore(self, state: Dict[str, Any]) -> None:
        missing = [name for name in state["parts"] if name not in self.corpus.parts]
        if missing:
            raise DistillError(f"data that the run used are gone: `{missing[0]}`")
        parts = self.corpus.parts
        new = [name for name in parts if name not in set(state["parts"])]
        # In the order of the run, so that it holds out the same sequences.
        self.corpus.parts = {name: parts[name] for name in [*state["parts"], *new]}
        self.rng.bit_generator.state = state["rng"]
        self.places, self.uses = [], np.zeros(0, np.int64)
        self.add(state["parts"])
        if len(self.uses) != len(state["uses"]):
            raise DistillError(f"data changed: {len(self.uses)} sequences to train on, the run had {len(state['uses'])}")
        self.uses = np.array(state["uses"], np.int64)
        self.carried = tuple(state["carried"]) if state["carried"] else None  # type: ignore[assignment]
        self.add(new)


def choose_vocabulary(corpus: Corpus, rows: int, always: Sequence[int]) -> Tuple[np.ndarray, float]:
    """The ``rows`` tokens with the most of the teacher's probability in the text to train on, ascending, and their share.

    ``always`` are in it in any case. Of equals, the smaller id: in vocabularies of merges it is the more frequent one.
    """
    mass = np.zeros(corpus.vocab)
    for name, part in corpus.parts.items():
        for index in corpus.choose(name, held_out=False):
            sequence = part.sequence(int(index), 1 << 30)
            np.add.at(mass, sequence.top_ids.ravel(), np.exp(sequence.top_logprobs.ravel().astype(np.float64)))
    if not mass.any():
        raise corpus.empty()
    if not max(1, len(always)) <= rows <= corpus.vocab:
        raise DistillError(f"output vocabulary is {rows}, allowed are {max(1, len(always))} to {corpus.vocab}")
    wanted = mass.copy()
    wanted[list(always)] = np.inf
    chosen = np.sort(np.argsort(-wanted, kind="stable")[:rows])
    return chosen, float(mass[chosen].sum() / mass.sum())


def targets(top_ids: np.ndarray, top_logprobs: np.ndarray, row_of: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the student should say: rows of its head ``[M, K]`` (-1: none), their probabilities, and the rest's ``[M]``.

    Tokens that the student cannot write are left out, and what remains is scaled to 1.
    """
    rows = row_of[top_ids]
    probabilities = np.exp(top_logprobs.astype(np.float32))
    rest = np.maximum(1 - probabilities.sum(-1), LEAST_REST)
    probabilities *= rows >= 0
    total = probabilities.sum(-1) + rest
    return rows, probabilities / total[:, None], rest / total


def row_of(token_ids: np.ndarray, vocab: int) -> np.ndarray:
    """For every token of the vocabulary its row in the head, or -1."""
    rows = np.full(vocab, -1, np.int64)
    rows[token_ids] = np.arange(len(token_ids))
    return rows
