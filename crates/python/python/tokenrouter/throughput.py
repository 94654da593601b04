"""The throughput model computes the long-run effect of thresholds without measuring it.

Inputs may be lists or NumPy arrays. Results are lists of flat dicts, one per threshold vector: ``pandas.DataFrame(rows)``.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _json, _native

Row = Dict[str, Any]


def _load(
    latencies_ms: Any,
    routing: Any,
    commits: Any,
    concurrency: int,
    quantum_ms: float,
    max_batch: Any,
    state_models: Any,
) -> str:
    """A system and the number of requests in it, as the native module reads them."""
    system = {
        "latencies_ms": latencies_ms,
        "routing": routing,
        "commits": commits,
        "quantum_ms": quantum_ms,
        "max_batch": max_batch,
        "state_models": state_models,
    }
    return _json.dumps({"system": system, "concurrency": int(concurrency)})


def _vectors(thresholds: Any) -> List[List[int]]:
    """Returns a list of vectors, also for a single vector."""
    rows = thresholds.tolist() if hasattr(thresholds, "tolist") else list(thresholds)
    one = bool(rows) and not hasattr(rows[0], "__len__")
    return [[int(value) for value in row] for row in ([rows] if one else rows)]


def _row(answer: Dict[str, Any]) -> Row:
    """Turns the measures of each model into one list per measure."""
    row: Row = {key: value for key, value in answer.items() if key not in ("models", "throughput")}
    row["thresholds"] = tuple(row["thresholds"])
    for key in answer["models"][0]:
        row[key] = [model[key] for model in answer["models"]]
    row["half_width"] = answer["throughput"]["half_width"] if "throughput" in answer else 0.0
    return row


def optimize(
    latencies_ms: Any,
    routing: Any,
    commits: Any = None,
    *,
    concurrency: int,
    quantum_ms: float = 0.1,
    max_batch: Optional[Sequence[Optional[int]]] = None,
    state_models: Optional[Sequence[int]] = None,
    strategy: str = "auto",
    max_wait_ms: Optional[float] = None,
    near_tie: float = 0.001,
) -> List[Row]:
    """Returns threshold vectors in order of descending throughput; the first is the best.

    ``latencies_ms`` has a number for every model, or a list by batch size. ``routing[i][j]`` is the probability that a step
    of model ``i`` sends the request to ``j``, and ``commits[i][j]`` is the number of tokens that such a step commits (1 by
    default). ``max_wait_ms`` bounds the mean wait in a buffer. ``strategy`` is ``auto``, ``exhaustive``, ``screening`` or ``local``. ``state_models``
    gives the model of every routing state when there are more states than models.

    >>> optimize([6.0, 27.9], [[0.35, 0.65], [1, 0]], [[1, 0], [1, 0]], concurrency=8)[0]["thresholds"]
    (1, 7)
    """
    load = _load(latencies_ms, routing, commits, concurrency, quantum_ms, max_batch, state_models)
    found = json.loads(_native.optimize(load, strategy, max_wait_ms, near_tie))
    rows = [_row(candidate) for candidate in found["candidates"]]
    for rank, row in enumerate(rows):
        row["near_tie"] = rank < found["near_ties"]
    return rows


def predict(
    latencies_ms: Any,
    routing: Any,
    commits: Any = None,
    *,
    thresholds: Union[Sequence[int], Sequence[Sequence[int]], Any],
    concurrency: int,
    quantum_ms: float = 0.1,
    max_batch: Optional[Sequence[Optional[int]]] = None,
    state_models: Optional[Sequence[int]] = None,
    max_states: int = 20_000_000,
) -> List[Row]:
    """Computes the exact long-run measures for ``thresholds``, which is one vector or several. See :func:`optimize` for the
    other arguments.

    >>> rows = predict([6.0, 27.9], [[0.35, 0.65], [1, 0]], [[1, 0], [1, 0]], thresholds=[1, 7], concurrency=8)
    >>> round(rows[0]["throughput_tok_s"], 6), rows[0]["states"]
    (281.812813, 18)
    """
    load = _load(latencies_ms, routing, commits, concurrency, quantum_ms, max_batch, state_models)
    answers = _native.predict(load, _vectors(thresholds), max_states)
    return [_row(answer) for answer in json.loads(answers)]


def simulate(
    latencies_ms: Any,
    routing: Any,
    commits: Any = None,
    *,
    thresholds: Union[Sequence[int], Sequence[Sequence[int]], Any],
    concurrency: int,
    quantum_ms: float = 0.1,
    max_batch: Optional[Sequence[Optional[int]]] = None,
    state_models: Optional[Sequence[int]] = None,
    seed: int = 1,
    max_steps: int = 5_000_000,
    relative_half_width: float = 0.0005,
) -> List[Row]:
    """Like :func:`predict`, but by simulation, for systems whose chain is too large. ``half_width`` is that of a 95 % interval."""
    load = _load(latencies_ms, routing, commits, concurrency, quantum_ms, max_batch, state_models)
    answers = _native.simulate(load, _vectors(thresholds), seed, max_steps, relative_half_width)
    return [_row(answer) for answer in json.loads(answers)]
