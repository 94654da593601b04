"""Measures of how well a student stands in for its teacher. NumPy only."""

from __future__ import annotations

from typing import Dict, Sequence

import numpy as np

#: Shares of the most certain tokens.
CERTAIN = (0.3, 0.5, 0.7)
#: Tokens inside a run of this length that the text had before are repetitions.
REPEATED = 8


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive has a higher score than a negative; equal scores count half. NaN without either."""
    positive = positive.astype(bool)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0:
        return float("nan")
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def certain_agreement(entropy: np.ndarray, agrees: np.ndarray, shares: Sequence[float] = CERTAIN) -> Dict[str, float]:
    """Agreement among the tokens with the lowest entropy, for shares of all tokens."""
    ordered = agrees[np.argsort(entropy, kind="stable")]
    counts = {share: max(1, int(len(ordered) * share)) for share in shares}
    return {f"{share:g}": float(ordered[:count].mean()) if len(ordered) else float("nan") for share, count in counts.items()}


def repeated(tokens: np.ndarray, length: int = REPEATED) -> np.ndarray:
    """For every token of a text: whether it is in a run of ``length`` tokens that began earlier in the text as well."""
    inside = np.zeros(len(tokens), bool)
    seen = set()
    for begin in range(len(tokens) - length + 1):
        run = tokens[begin : begin + length].tobytes()
        if run in seen:
            inside[begin : begin + length] = True
        seen.add(run)
    return inside


def summary(entropy: np.ndarray, agrees: np.ndarray, kl: np.ndarray, repeats: np.ndarray) -> Dict[str, object]:
    """The measures of one kind of text; all arguments ``[M]``."""
    if len(agrees) == 0:
        return {"tokens": 0}
    new = agrees[~repeats]
    return {
        "tokens": len(agrees),
        "agreement": float(agrees.mean()),
        "kl": float(kl.mean()),
        "auc": auc(entropy, ~agrees),
        "certain": certain_agreement(entropy, agrees),
        "repeated": float(repeats.mean()),
        "agreement_not_repeated": float(new.mean()) if len(new) else float("nan"),
    }
