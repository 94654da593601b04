"""Training: a folder with a checkpoint, the recipe and the curve, in which an interrupted run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch

from . import DistillError
from . import evaluate as evaluation
from .data import Corpus, Sampler, choose_vocabulary, row_of, targets
from .loss import mean_divergence
from .model import Student, build, copy_layers, device_and_dtype, parse_layers, parse_sizes
from .teacher import Model, open_model

CHECKPOINT = "checkpoint.pt"
#: What the learning rate ends with, as a share.
LAST_RATE = 0.02
#: Steps between looks for new data.
LOOK = 20
#: AdamW's momenta.
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Settings:
    """What a run is made of. A folder keeps them: a run goes on only with the same ones."""

    teacher: str
    data: List[str]
    layers: Optional[str] = None
    sizes: Optional[str] = None
    init: Optional[str] = None
    output_vocab: int = 16384
    train_head: bool = False
    length: int = 256
    rows: int = 8
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup: int = 60
    seed: int = 0
    held_out: int = 32
    held_out_sequences: int = 64


@dataclass
class Progress:
    """How far a run is. ``seconds`` are of training, without evaluations."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = float("nan")
    #: Where the learning rate began to fall, and over how much: in seconds, or in steps.
    anneal: Optional[Dict[str, Any]] = None

    def done(self, unit: str) -> float:
        return self.seconds if unit == "seconds" else self.step


@dataclass
class Limit:
    """Where a call ends: a total of seconds or of steps."""

    unit: str
    total: float


@dataclass
class Run:
    """A student in training."""

    folder: Path
    settings: Settings
    teacher: Model
    student: Student
    token_ids: np.ndarray
    vocabulary_share: float
    corpus: Corpus
    sampler: Sampler
    optimizer: torch.optim.Optimizer
    progress: Progress = field(default_factory=Progress)
    curve: List[Dict[str, Any]] = field(default_factory=list)

    def evaluate(self) -> Dict[str, Dict[str, Any]]:
        settings = self.settings
        texts = list(self.corpus.held_out(settings.length, settings.held_out_sequences))
        return evaluation.evaluate(self.student, texts, self.token_ids)

    def step(self, rows: torch.Tensor) -> None:
        """One step of the optimizer."""
        settings, progress = self.settings, self.progress
        if progress.step % LOOK == 0:
            self.sampler.refresh()
        begin = time.monotonic()
        batch = self.sampler.batch()
        device = self.student.embedding.device
        wanted = (torch.from_numpy(x).to(device) for x in targets(batch.top_ids, batch.top_logprobs, rows))
        loss = mean_divergence(evaluation.hidden_states(self.student, batch), self.student.head, *wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate(settings, progress)
        self.optimizer.step()
        self.optimizer.zero_grad()
        value = float(loss.detach())
        progress.loss = value if progress.step == 0 else 0.95 * progress.loss + 0.05 * value
        progress.step += 1
        progress.tokens += len(batch.used)
        progress.seconds += time.monotonic() - begin

    def save(self) -> None:
        """Writes the checkpoint: the old one stays until the new one is whole."""
        state = {
            "settings": asdict(self.settings),
            "weights": self.student.trained(),
            "token_ids": torch.from_numpy(self.token_ids),
            "vocabulary_share": self.vocabulary_share,
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state(),
            "progress": asdict(self.progress),
            "curve": self.curve,
        }
        path = self.folder / CHECKPOINT
        unfinished = path.with_suffix(".tmp")
        torch.save(state, unfinished)
        os.replace(unfinished, path)


def rate(settings: Settings, progress: Progress) -> float:
    """The learning rate's factor: it rises, is constant, and falls to `LAST_RATE` where the run is annealed."""
    factor = min(1.0, (progress.step + 1) / settings.warmup) if settings.warmup else 1.0
    if progress.anneal is not None:
        spent = progress.done(progress.anneal["unit"]) - progress.anneal["begin"]
        factor *= max(LAST_RATE, 1 - spent / progress.anneal["length"])
    return factor


def make_optimizer(student: Student, settings: Settings) -> torch.optim.Optimizer:
    trained = list(student.trained().values())
    matrices = {"params": [value for value in trained if value.ndim > 1], "weight_decay": settings.weight_decay}
    vectors = {"params": [value for value in trained if value.ndim <= 1], "weight_decay": 0.0}
    return torch.optim.AdamW([matrices, vectors], lr=settings.learning_rate, betas=BETAS, fused=True)


def new_student(teacher: Model, settings: Settings, token_ids: np.ndarray) -> Student:
    """The student before its first step."""
    if (settings.layers is None) == (settings.sizes is None):
        raise DistillError("exactly one of --layers and --sizes is needed")
    layers = parse_layers(settings.layers, teacher.shape) if settings.layers is not None else None
    shape = parse_sizes(settings.sizes or "", teacher.shape) if layers is None else replace(teacher.shape, layers=len(layers))
    student = build(teacher, shape, token_ids, settings.length, settings.train_head, settings.seed)
    if settings.init is not None:
        copy_layers(student, open_model(settings.init), range(shape.layers))
    elif layers is not None:
        copy_layers(student, teacher, layers)
    return student


def read_checkpoint(folder: Path) -> Optional[Dict[str, Any]]:
    path = folder / CHECKPOINT
    return torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else None


def no_run(folder: Path) -> DistillError:
    return DistillError(f"`{folder}` has no run: there is no `{CHECKPOINT}`")


@dataclass
class Trained:
    """A student as the checkpoint of a run has it."""

    settings: Settings
    teacher: Model
    student: Student
    token_ids: np.ndarray
    state: Dict[str, Any]


def load_trained(folder: Path, device: str = "auto", dtype: str = "auto") -> Trained:
    """The student of a run; its data may be gone."""
    state = read_checkpoint(folder)
    if state is None:
        raise no_run(folder)
    settings = Settings(**state["settings"])
    teacher, token_ids = open_model(settings.teacher), state["token_ids"].numpy()
    student = new_student(teacher, settings, token_ids)
    student.load_state_dict(state["weights"], strict=False)
    return Trained(settings, teacher, student.place(*device_and_dtype(device, dtype)), token_ids, state)


def open_run(folder: Path, given: Optional[Settings], device: str = "auto", dtype: str = "auto") -> Run:
    """A new run, or the one in the folder. Without settings, it must be there."""
    state = read_checkpoint(folder)
    if state is not None:
        settings = Settings(**state["settings"])
        check_settings(folder, settings, given)
    elif given is not None:
        settings = given
        check_numbers(settings)
    else:
        raise no_run(folder)
    teacher = open_model(settings.teacher)
    corpus = Corpus(settings.data, teacher.shape.vocab, settings.held_out)
    if state is not None:
        token_ids, share = state["token_ids"].numpy(), state["vocabulary_share"]
    else:
        token_ids, share = vocabulary(corpus, settings.output_vocab, teacher)
    student = new_student(teacher, settings, token_ids)
    if state is not None:
        student.load_state_dict(state["weights"], strict=False)
    student.place(*device_and_dtype(device, dtype))
    sampler = Sampler(corpus, settings.rows, settings.length, settings.seed)
    run = Run(folder, settings, teacher, student, token_ids, share, corpus, sampler, make_optimizer(student, settings))
    if state is not None:
        run.optimizer.load_state_dict(state["optimizer"])
        sampler.restore(state["sampler"])
        run.progress, run.curve = Progress(**state["progress"]), state["curve"]
    folder.mkdir(parents=True, exist_ok=True)
    return run


def check_numbers(settings: Settings) -> None:
    for name in ("output_vocab", "length", "rows", "learning_rate", "held_out", "held_out_sequences"):
        if not getattr(settings, name) > 0:
            raise DistillError(f"--{name.replace('_', '-')}: {getattr(settings, name)} is not allowed, allowed is more than 0")
    if settings.warmup < 0 or settings.weight_decay < 0:
        raise DistillError(f"--warmup {settings.warmup} and --weight-decay {settings.weight_decay} must not be negative")


def vocabulary(corpus: Corpus, rows: int, teacher: Model) -> Tuple[np.ndarray, float]:
    """The tokens of a student's head, and the share of the teacher's probability that they have."""
    if rows >= teacher.shape.vocab:
        return np.arange(teacher.shape.vocab), 1.0
    return choose_vocabulary(corpus, rows, teacher.end_tokens)


def choose_again(run: Run, rows: int) -> None:
    """Another head for a run, for the text as it is now. Its rows are the teacher's, so nothing that was trained is lost."""
    if run.settings.train_head:
        raise DistillError("--output-vocab: a head that was trained has its tokens")
    run.token_ids, run.vocabulary_share = vocabulary(run.corpus, rows, run.teacher)
    run.settings = replace(run.settings, output_vocab=rows)
    head = run.student.head
    head.data = torch.from_numpy(run.teacher.head()[run.token_ids]).to(head)


def check_settings(folder: Path, old: Settings, given: Optional[Settings]) -> None:
    if given is not None and given != old:
        before, now = asdict(old), asdict(given)
        changes = ", ".join(f"`{name}` was {before[name]}, is {now[name]}" for name in before if before[name] != now[name])
        raise DistillError(f"`{folder}` has a run with other settings: {changes}")


def branch(source: Path, folder: Path) -> None:
    """Copies a run's checkpoint into a new folder."""
    if (folder / CHECKPOINT).exists():
        return
    if not (source / CHECKPOINT).is_file():
        raise no_run(source)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{CHECKPOINT}.tmp"
    shutil.copyfile(source / CHECKPOINT, unfinished)
    os.replace(unfinished, folder / CHECKPOINT)


@contextmanager
def interruptible() -> Iterator[List[int]]:
    """Collects SIGINT and SIGTERM: the step that runs is finished, and a checkpoint written."""
    asked: List[int] = []
    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, lambda number, _: asked.append(number)) for name in names]
    try:
        yield asked
    finally:
        for name, handler in zip(names, before):
            signal.signal(name, handler)


def train(run: Run, limit: Limit, every: float, report: Callable[[Run, Dict[str, Any]], None]) -> bool:
    """Trains up to a limit. Every ``every`` seconds, at the beginning and at the end, it evaluates, saves, and calls
    ``report(run, measures)``. Returns whether the limit was reached; otherwise it was interrupted, and has only saved."""
    from tqdm import tqdm

    rows = row_of(run.token_ids, run.teacher.shape.vocab)

    def point() -> None:
        result = run.evaluate()
        run.curve.append(curve_row(run, result))
        run.save()
        report(run, result)

    progress = run.progress
    scale = 60 if limit.unit == "seconds" else 1
    bar = tqdm(total=round(limit.total / scale, 2), unit="min" if scale == 60 else "step", disable=None)
    with interruptible() as asked, bar:
        if progress.step == 0:
            point()
        last = time.monotonic()
        while progress.done(limit.unit) < limit.total and not asked:
            run.step(rows)
            bar.n = round(progress.done(limit.unit) / scale, 2)
            bar.set_postfix_str(f"KL {progress.loss:.3f}, {progress.tokens / progress.seconds:.0f} tokens/s")
            if time.monotonic() - last >= every:
                point()
                last = time.monotonic()
        complete = progress.done(limit.unit) >= limit.total
        if not complete:
            run.save()
        elif not run.curve or run.curve[-1]["step"] != progress.step:
            point()
    return complete


def curve_row(run: Run, result: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    progress = run.progress
    row: Dict[str, Any] = {
        "minutes": round(progress.seconds / 60, 2),
        "step": progress.step,
        "tokens": progress.tokens,
        "data_tokens": run.corpus.tokens(),
        "learning_rate": run.settings.learning_rate * rate(run.settings, progress),
        "loss": progress.loss,
    }
    for kind, values in result.items():
        for name in ("tokens", "agreement", "kl", "auc"):
            row[f"{kind}_{name}"] = values.get(name, float("nan"))
    return row
