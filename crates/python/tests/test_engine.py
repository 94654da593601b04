"""The engine from Python, on emulated models."""

import asyncio
import threading

import numpy as np
import pytest
import tokenrouter as tr

CONFIG = {
    "models": {"small": {"emulated": {"latency_ms": 0.2}}, "large": {"emulated": {"latency_ms": 0.5}}},
    "routing": {"method": "random", "probability": 0.4},
    "system": {"max_active": 4},
}
SHORT = {"temperature": 0, "max_new_tokens": 20}


@pytest.fixture
def engine():
    with tr.TokenRoutingEngine(CONFIG) as engine:
        yield engine


def test_one_prompt(engine):
    result = engine.generate([1, 2, 3], sampling_params=SHORT)
    assert result["finish_reason"] == "length"
    assert (result["prompt_tokens"], result["completion_tokens"]) == (3, 20)
    assert len(result["output_ids"]) == len(result["origins"]) == 20
    assert sum(result["tokens_by_model"].values()) == 20
    assert set(result["origins"]) <= {"small", "large"}
    assert result["text"] is None, "emulated models write no text"


def test_lists_numpy_and_streams_agree(engine):
    engine._native.next_key = 7
    one = engine.generate(np.array([1, 2, 3]), sampling_params=SHORT)
    engine._native.next_key = 7
    pieces = list(engine.generate([1, 2, 3], sampling_params=SHORT, stream=True))
    assert [token for piece in pieces for token in piece["output_ids"]] == one["output_ids"]
    assert pieces[-1]["finish_reason"] == "length" and "finish_reason" not in pieces[0]
    engine._native.next_key = 7
    several = engine.generate([[1, 2, 3], [4, 5]], sampling_params=[SHORT, {"max_new_tokens": 5}])
    assert several[0]["output_ids"] == one["output_ids"]
    assert several[1]["completion_tokens"] == 5


def test_async(engine):
    async def run():
        engine._native.next_key = 3
        many = await engine.async_generate([[1], [2], [3]], sampling_params=SHORT)
        engine._native.next_key = 3
        stream = await engine.async_generate([1], sampling_params=SHORT, stream=True)
        ids = [token async for piece in stream for token in piece["output_ids"]]
        return many, ids

    many, ids = asyncio.run(run())
    assert [result["completion_tokens"] for result in many] == [20, 20, 20]
    assert many[0]["output_ids"] == ids


def test_cancelled_tasks_and_left_iterators_end_their_requests(engine):
    async def run():
        task = asyncio.ensure_future(engine.async_generate([1], sampling_params={"max_new_tokens": 100_000}))
        stream = await engine.async_generate([2], sampling_params=SHORT, stream=True)
        async for _ in stream:
            task.cancel()
            break
        await stream.aclose()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    for _ in engine.generate([1], sampling_params={"max_new_tokens": 100_000}, stream=True):
        break
    assert engine.drain(30.0), "all requests ended"


def test_the_interpreter_runs_while_the_engine_works(engine):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    engine.generate([1], sampling_params={"max_new_tokens": 50})
    counted = len(ticks) - before
    done.set()
    thread.join()
    assert counted > 0


def test_errors_are_typed_and_name_the_problem(engine, tmp_path):
    with pytest.raises(tr.InvalidRequestError, match="temprature"):
        engine.generate([1], sampling_params={"temprature": 0})
    with pytest.raises(ValueError, match="max_tokens.*is 0"):
        engine.generate([1], sampling_params={"max_new_tokens": 0})
    with pytest.raises(tr.InvalidRequestError, match="token ids"):
        engine.generate("text")
    with pytest.raises(tr.InvalidRequestError, match="exactly one"):
        engine.generate()
    with pytest.raises(tr.InvalidRequestError, match="vocabulary"):
        engine.generate([10_000_000])
    with pytest.raises(tr.ConfigError, match="max_activ"):
        tr.TokenRoutingEngine({**CONFIG, "system": {"max_activ": 4}})
    missing = tmp_path / "missing.yaml"
    with pytest.raises(tr.ConfigError, match="missing.yaml"):
        tr.TokenRoutingEngine(missing)
    assert issubclass(tr.ConfigError, tr.TokenRouterError)


def test_a_closed_engine_says_so():
    engine = tr.TokenRoutingEngine(CONFIG)
    stream = engine.generate([1], sampling_params={"max_new_tokens": 100_000}, stream=True)
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(tr.EngineClosedError):
        for _ in stream:
            pass
    with pytest.raises(tr.EngineClosedError, match="closed"):
        engine.generate([1])


def test_info_and_stats(engine):
    engine.generate([1], sampling_params=SHORT)
    assert engine.models == ["small", "large"]
    assert engine.info()["emulated"] is True
    assert engine.stats()["models"][0]["steps"] > 0
