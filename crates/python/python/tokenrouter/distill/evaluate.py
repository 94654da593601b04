"""Held-out measures of a student."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import metrics
from .data import Text, pack, row_of, targets
from .loss import CHUNK, divergence
from .model import Student

ROWS = 16


def hidden_states(student: Student, batch: Any) -> Tensor:
    """``[M, d_model]``: of the positions of a batch that hold tokens."""
    device = student.embedding.device
    tokens, positions, segments, used = (torch.from_numpy(x).to(device) for x in batch[:4])
    return student(tokens, positions, segments).flatten(0, 1)[used]


@torch.no_grad()
def evaluate(student: Student, texts: Sequence[Text], token_ids: np.ndarray) -> Dict[str, Dict[str, object]]:
    """Measures at the positions before tokens that the teacher sampled: ``greedy`` of temperature 0, ``sampled`` of others."""
    student.eval()
    rows = row_of(token_ids, student.shape.vocab)
    found: Dict[str, List[List[np.ndarray]]] = {"greedy": [], "sampled": []}
    for begin in range(0, len(texts), ROWS):
        some = texts[begin : begin + ROWS]
        batch = pack([[text] for text in some], max(len(text.tokens) for text in some))
        hidden = hidden_states(student, batch)
        at = 0
        for text in some:
            # Position t is before token t + 1.
            asked = np.flatnonzero(text.written[1:])
            part = hidden[at + torch.from_numpy(asked).to(hidden.device)]
            at += len(text.tokens)
            top = text.top_ids[asked], text.top_logprobs[asked]
            measured = _measure(student, part, top, rows, token_ids)
            repeats = metrics.repeated(text.tokens)[asked + 1]
            found["greedy" if text.temperature == 0 else "sampled"].append([*measured, repeats])
    student.train()
    nothing = [np.zeros(0), np.zeros(0, bool), np.zeros(0), np.zeros(0, bool)]
    return {
        kind: metrics.summary(*(np.concatenate(columns) for columns in zip(nothing, *parts))) for kind, parts in found.items()
    }


def _measure(student: Student, hidden: Tensor, top: Sequence[np.ndarray], rows: np.ndarray, token_ids: np.ndarray) -> Any:
    """The student's entropy, whether it agrees, and the divergence, of every position."""
    device = hidden.device
    wanted, p, rest = (torch.from_numpy(x).to(device) for x in targets(*top, rows))
    entropy, choice, kl = [], [], []
    for begin in range(0, len(hidden), CHUNK):
        part = slice(begin, begin + CHUNK)
        exps = F.linear(hidden[part], student.head.to(hidden.dtype)).float()
        logits = exps - exps.amax(-1, keepdim=True)
        exps = logits.exp()
        total = exps.sum(-1, keepdim=True)
        entropy.append(total[:, 0].log() - (exps * logits).sum(-1) / total[:, 0])
        choice.append(logits.argmax(-1))
        kl.append(divergence(exps, total, wanted[part], p[part], rest[part])[0])
    if not entropy:
        return np.zeros(0), np.zeros(0, bool), np.zeros(0)
    chosen = token_ids[torch.cat(choice).cpu().numpy()]
    return torch.cat(entropy).cpu().numpy(), chosen == top[0][:, 0], torch.cat(kl).cpu().numpy()


def line(result: Dict[str, Dict[str, Any]]) -> str:
    """One line for a log."""
    parts = []
    for kind, values in result.items():
        if values["tokens"]:
            parts.append(f"{kind}: agreement {values['agreement']:.3f}, KL {values['kl']:.3f}, AUC {values['auc']:.3f}")
    return "; ".join(parts) or "no held-out text"
