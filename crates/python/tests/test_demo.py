"""The demo pair from Python: real text. Skipped where the model was not fetched (`trbench models fetch demo`)."""

from pathlib import Path

import pytest
import tokenrouter as tr

DEMO = Path(__file__).parents[3] / "config/rstitch/demo.yaml"


@pytest.fixture(scope="module")
def engine():
    try:
        engine = tr.TokenRoutingEngine(DEMO)
    except tr.ModelError as error:
        pytest.skip(str(error))
    with engine:
        yield engine


def test_text_streams_and_conversations(engine):
    params = {"temperature": 0, "max_new_tokens": 24}
    whole = engine.generate(prompt="The capital of France is", sampling_params=params)
    assert isinstance(whole["text"], str) and whole["text"]
    pieces = list(engine.generate(prompt="The capital of France is", sampling_params=params, stream=True))
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    answer = engine.generate(messages=[{"role": "user", "content": "Say hello."}], sampling_params=params)
    assert answer["completion_tokens"] > 0 and answer["prompt_tokens"] > 5


def test_a_policy_sees_hidden_states():
    class Norm(tr.RoutingPolicy):
        widths = set()

        def needs(self, model):
            return tr.Needs(hidden=model == 0)

        def route(self, batch):
            if batch.model == 0:
                self.widths.add(batch.hidden.shape[1])
                batch.decision[abs(batch.hidden).max(axis=1) > 1e9] = 1

    try:
        engine = tr.TokenRoutingEngine(DEMO, policy=Norm())
    except tr.ModelError as error:
        pytest.skip(str(error))
    with engine:
        result = engine.generate("Hello", sampling_params={"max_new_tokens": 4, "ignore_eos": True})
    assert result["completion_tokens"] == 4 and Norm.widths == {576}
