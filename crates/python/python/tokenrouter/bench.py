"""``python -m tokenrouter.bench``: what a routing method costs per step in Python, compared with the same method in Rust.

It runs emulated models with very short steps. The time is what the subservers spend outside forward passes (``scheduling``
in the statistics), per step and at the mean batch size of the run.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict, List, Optional

from . import RoutingPolicy, SentRow, TokenRoutingEngine
from .routing import BatchView, Needs

PROBABILITY = 0.3


class Borrow(RoutingPolicy):
    """The method ``random`` (borrow) in NumPy: draws, one comparison, one assignment."""

    def __init__(self, probability: float = PROBABILITY) -> None:
        self.probability = probability

    def needs(self, model: int) -> Needs:
        return Needs(softmax=True)

    def route(self, batch: BatchView) -> None:
        if batch.model == 0:
            leaves = batch.draw < self.probability
            batch.decision[leaves] = 1
            batch.drop[leaves] = True
        else:
            batch.decision[:] = 0


class BorrowWithSend(Borrow):
    """The same, with ``send`` also in Python: one call for every switch."""

    def send(self, row: SentRow, to: int) -> bool:
        return row.model != 0


def config(concurrency: int) -> Dict[str, Any]:
    return {
        "models": {name: {"emulated": {"latency_ms": 0.3}} for name in ("small", "large")},
        "routing": {"method": "random", "probability": PROBABILITY},
        "system": {"max_active": concurrency},
    }


def measure(policy: Optional[RoutingPolicy], concurrency: int, tokens: int) -> Dict[str, float]:
    """Microseconds of scheduling per step, and rows per step."""
    with TokenRoutingEngine(config(concurrency), policy=policy) as engine:
        prompts = [[1 + index, 2, 3] for index in range(concurrency)]
        engine.generate(prompts, sampling_params={"max_new_tokens": tokens})
        models = engine.stats()["models"]
    time = sum(model["scheduling"]["secs"] + model["scheduling"]["nanos"] * 1e-9 for model in models)
    steps = sum(model["steps"] for model in models)
    return {"us": time * 1e6 / steps, "rows": sum(model["rows"] for model in models) / steps}


def table(concurrencies: List[int], tokens: int) -> List[Dict[str, Any]]:
    rows = []
    for concurrency in concurrencies:
        rust, python, with_send = (measure(policy, concurrency, tokens) for policy in (None, Borrow(), BorrowWithSend()))
        rows.append(
            {
                "concurrency": concurrency,
                "rows_per_step": python["rows"],
                "rust_us": rust["us"],
                "python_us": python["us"],
                "python_with_send_us": with_send["us"],
                "added_us": python["us"] - rust["us"],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tokenrouter.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="requests at the same time")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of each request")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = table(args.concurrency, args.tokens)
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print("microseconds of scheduling per step (emulated models)")
    print(f"{'requests':>9} {'rows/step':>10} {'Rust':>8} {'Python':>8} {'with send':>10} {'added':>8}")
    for row in rows:
        print(
            f"{row['concurrency']:9d} {row['rows_per_step']:10.2f} {row['rust_us']:8.1f} {row['python_us']:8.1f} "
            f"{row['python_with_send_us']:10.1f} {row['added_us']:8.1f}"
        )


if __name__ == "__main__":
    main()
