"""The end of a run: its student, measured as it was written, and its recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict

import torch

from . import export as out
from .data import Corpus
from .evaluate import evaluate
from .model import copy_written, tensors
from .teacher import HEAD, open_model
from .train import load_trained

#: Sequences of the last measures, in those of a point of the curve.
MORE = 4


def export(folder: Path, quantize: str, device: str, dtype: str) -> Dict[str, Any]:
    """Writes `student.gguf` and `recipe.json` of a folder's checkpoint; returns the recipe."""
    trained = load_trained(folder, device, dtype)
    settings, teacher, student, state = trained.settings, trained.teacher, trained.student, trained.state
    path, values, digest = folder / out.STUDENT, tensors(student), teacher.embedding_digest()
    if settings.train_head or teacher.has(HEAD):
        values[HEAD] = student.head.detach().float().cpu().numpy()
    partial = len(trained.token_ids) < teacher.shape.vocab
    out.write_gguf(path, student.shape, values, trained.token_ids if partial else None, digest, quantize)
    # What is measured is what was written.
    copy_written(student, open_model(str(path)))
    corpus = Corpus(settings.data, teacher.shape.vocab, settings.held_out)
    texts = list(corpus.held_out(settings.length, MORE * settings.held_out_sequences))
    recipe = {
        "settings": asdict(settings),
        "shape": asdict(student.shape),
        "trained_weights": sum(value.numel() for value in student.trained().values()),
        "output_vocabulary_share": state["vocabulary_share"],
        "teacher": {"files": teacher.digests(), "embedding_sha256": digest},
        "data": out.data_story(corpus),
        "progress": state["progress"],
        "student": out.written(path, quantize),
        "held_out": evaluate(student, texts, trained.token_ids),
        "machine": out.machine(torch.get_num_threads(), student.embedding.device.type, str(student.embedding.dtype)),
        "versions": out.versions(),
    }
    out.write_recipe(folder, recipe)
    return recipe
