"""Routing methods in Python."""

import numpy as np
import pytest
import tokenrouter as tr
from tokenrouter.bench import Borrow, BorrowWithSend

CONFIG = {
    "models": {"small": {"emulated": {"latency_ms": 0.2}}, "large": {"emulated": {"latency_ms": 0.5}}},
    "routing": {"method": "random", "probability": 0.3},
    "system": {"max_active": 24},
}
PARAMS = {"max_new_tokens": 60, "seed": 5}
PROMPTS = [[1 + index, 2] for index in range(24)]


def run(policy, prompts=PROMPTS):
    with tr.TokenRoutingEngine(CONFIG, policy=policy) as engine:
        results = engine.generate(prompts, sampling_params=PARAMS)
    return [(result["output_ids"], result["origins"]) for result in results]


def test_the_same_method_in_python_and_in_rust_writes_the_same():
    rust = run(None)
    assert {origin for _, origins in rust for origin in origins} == {"small", "large"}
    assert run(Borrow(0.3)) == rust
    assert run(BorrowWithSend(0.3)) == rust, "with `send` in Python"


class Alternate(tr.RoutingPolicy):
    """Three tokens each, counted in the request's state; reads all kinds of arrays."""

    state_size = 2

    def setup(self, models, entry, vocab):
        self.models, self.entry = models, entry

    def needs(self, model):
        return tr.Needs(softmax=True, top_logits=4)

    def route(self, batch):
        assert batch.entropy.shape == batch.draw.shape == (len(batch),)
        assert batch.top_logits.shape == batch.top_ids.shape == (len(batch), 4)
        assert (np.diff(batch.top_logits, axis=1) <= 0).all()
        assert not batch.entropy.flags.owndata and not batch.decision.flags.owndata, "views, not copies"
        batch.state[:, 0] += 1
        full = batch.state[:, 0] >= 3
        batch.decision[full] = 1 - batch.model
        batch.state[full, 0] = 0
        batch.state[:, 1] += 1
        assert (batch.state[:, 1] == batch.position + 1).all(), "the state travels with the request"
        batch.score[:] = batch.entropy


def test_state_travels_and_arrays_grow():
    policy = Alternate()
    for ids, origins in run(policy):
        assert len(ids) == 60
        assert origins == (["small"] * 3 + ["large"] * 3) * 10
    assert (policy.models, policy.entry) == (["small", "large"], 0)


class Receiver(Borrow):
    def __init__(self):
        super().__init__(0.3)
        self.received = 0

    def receive(self, log, delta):
        assert log.dtype == delta.dtype == np.uint32
        self.received += 1
        return delta


def test_receive_takes_the_tokens():
    policy = Receiver()
    assert run(policy) == run(None)
    assert policy.received > 0


class Broken(tr.RoutingPolicy):
    def __init__(self, what):
        self.what = what

    def route(self, batch):
        if self.what == "raise":
            raise KeyError("no such signal")
        batch.decision[:] = self.what


@pytest.mark.parametrize(("what", "words"), [("raise", "no such signal"), (7, "decided 7.*0 to 1"), (-9, "STAY")])
def test_faults_of_a_method_end_its_requests_with_their_words(what, words):
    with tr.TokenRoutingEngine(CONFIG, policy=Broken(what)) as engine:
        with pytest.raises(tr.GenerationError, match=words):
            engine.generate([1, 2], sampling_params=PARAMS)
        with pytest.raises(tr.GenerationError, match=words):
            engine.generate([3], sampling_params=PARAMS)


def test_a_method_that_cannot_be_built_is_a_configuration_error():
    class NoSetup(tr.RoutingPolicy):
        def setup(self, models, entry, vocab):
            raise RuntimeError("needs three models")

    with pytest.raises(tr.ConfigError, match="needs three models"):
        tr.TokenRoutingEngine(CONFIG, policy=NoSetup())


def test_stay_retry_and_finish():
    class Short(tr.RoutingPolicy):
        def route(self, batch):
            batch.decision[batch.position == 4] = tr.FINISH

    assert [len(ids) for ids, _ in run(Short())] == [5] * len(PROMPTS)
