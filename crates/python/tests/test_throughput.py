"""The throughput model from Python."""

import doctest

import numpy as np
import pytest
import tokenrouter as tr
from tokenrouter import throughput

PAIR = {
    "latencies_ms": np.array([6.0, 27.9]),
    "routing": np.array([[0.35, 0.65], [1.0, 0.0]]),
    "commits": [[1, 0], [1, 0]],
    "concurrency": 8,
}


def test_docstrings():
    assert doctest.testmod(throughput).failed == 0


def test_optimize_predict_and_simulate_agree():
    rows = tr.optimize(**PAIR)
    assert rows[0]["thresholds"] == (1, 7) and rows[0]["near_tie"]
    assert len(rows) == 36 and all(len(row["utilisation"]) == 2 for row in rows)
    exact = tr.predict(**PAIR, thresholds=[(1, 7), (1, 1)])
    assert exact[0]["throughput_tok_s"] == pytest.approx(rows[0]["throughput_tok_s"])
    simulated = tr.simulate(**PAIR, thresholds=np.array([1, 7]), max_steps=1_000_000)
    (row,) = simulated
    assert abs(row["throughput_tok_s"] - exact[0]["throughput_tok_s"]) < 5 * row["half_width"] + 1e-9


def test_rows_are_flat():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(tr.optimize(**PAIR))
    assert frame["throughput_tok_s"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"routing": [[0.5, 0.6], [1, 0]]}, "P row 0"),
        ({"concurrency": 0}, "concurrency"),
        ({"latencies_ms": [0.0, 1.0]}, "latency of model 0"),
    ],
)
def test_bad_input_names_the_place(change, words):
    with pytest.raises(tr.ThroughputModelError, match=words):
        tr.predict(**{**PAIR, **change}, thresholds=[1, 1])


def test_infeasible_thresholds_are_explained():
    with pytest.raises(ValueError, match="deadlock"):
        tr.predict(**PAIR, thresholds=[5, 5])
