"""The divergence from the teacher's likeliest tokens plus the rest to the student, in chunks of positions."""

from __future__ import annotations

from typing import Any, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: Positions whose logits exist at the same time.
CHUNK = 256
LEAST = 1e-9
#: Least probability of the student's rest; differences of f32 sums are not known better.
LEAST_REST = 1e-6


def divergence(exps: Tensor, total: Tensor, rows: Tensor, p: Tensor, rest: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """KL ``[n]``, the student's probabilities of the teacher's tokens ``[n, K]``, and of the rest ``[n, 1]``.

    ``exps`` ``[n, R]`` are exponentials of logits, ``total`` ``[n, 1]`` their sums.
    """
    there = rows >= 0
    q = torch.where(there, exps.gather(1, rows.clamp(min=0)) / total, 0.0)
    q_rest = (1 - q.sum(-1, keepdim=True)).clamp(min=LEAST_REST)
    of_tokens = torch.where(there, p * (p.clamp(min=LEAST).log() - q.clamp(min=LEAST).log()), 0.0).sum(-1)
    return of_tokens + rest * (rest.clamp(min=LEAST).log() - q_rest[:, 0].log()), q, q_rest


class Divergence(torch.autograd.Function):
    """Mean KL over positions.

    The gradient with respect to the logits is known in closed form, so the forward pass computes that of the hidden states,
    and no logits are kept: for the teacher's tokens ``q - p``, for others ``q (1 - rest / q_rest)``.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, rows: Tensor, p: Tensor, rest: Tensor, chunk: int) -> Tensor:
        """``hidden`` ``[M, d]``, ``head`` ``[R, d]``, ``rows`` ``[M, K]`` (-1: none), ``p`` ``[M, K]``, ``rest`` ``[M]``."""
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        used = head.to(hidden.dtype)
        sum_of_kl = hidden.new_zeros((), dtype=torch.float32)
        for begin in range(0, len(hidden), chunk):
            part = slice(begin, begin + chunk)
            exps = F.linear(hidden[part], used).float()
            exps.sub_(exps.amax(-1, keepdim=True)).exp_()
            total = exps.sum(-1, keepdim=True)
            kl, q, q_rest = divergence(exps, total, rows[part], p[part], rest[part])
            sum_of_kl += kl.sum()
            outside = 1 - rest[part, None] / q_rest
            d_logits = exps.mul_(outside / total)
            inside = torch.where(rows[part] >= 0, q - p[part] - q * outside, 0.0)
            d_logits = d_logits.scatter_add_(1, rows[part].clamp(min=0), inside).to(hidden.dtype)
            torch.mm(d_logits, used, out=d_hidden[part])
            if d_head is not None:
                d_head += (d_logits.T @ hidden[part]).float()
        ctx.count = len(hidden)
        ctx.save_for_backward(d_hidden, d_head)
        return sum_of_kl / len(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        d_hidden, d_head = ctx.saved_tensors
        scale = gradient / ctx.count
        d_head = None if d_head is None else d_head * scale
        return d_hidden * scale.to(d_hidden.dtype), d_head, None, None, None, None


def mean_divergence(hidden: Tensor, head: Tensor, rows: Tensor, p: Tensor, rest: Tensor, chunk: int = CHUNK) -> Tensor:
    """Mean KL, differentiable in ``hidden`` and ``head``."""
    return Divergence.apply(hidden, head, rows, p, rest, chunk)
