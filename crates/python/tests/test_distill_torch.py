"""`tokenrouter.distill` with PyTorch: loss, model, training, and going on after an interruption."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

from distilled import SHAPE, VOCAB, embedding, weights, write_folder, write_part, write_trbench  # noqa: E402
from tokenrouter.distill import DistillError  # noqa: E402
from tokenrouter.distill import __main__ as command_line  # noqa: E402
from tokenrouter.distill.data import Text, pack  # noqa: E402
from tokenrouter.distill.evaluate import evaluate, hidden_states  # noqa: E402
from tokenrouter.distill.export import write_gguf  # noqa: E402
from tokenrouter.distill.loss import mean_divergence  # noqa: E402
from tokenrouter.distill.model import Student, attend, copy_layers, parse_layers, parse_sizes, tensors  # noqa: E402
from tokenrouter.distill.teacher import open_model  # noqa: E402
from tokenrouter.distill.train import Progress, Settings, load_trained, rate  # noqa: E402


def text(rng, length, temperature=0.8):
    ids = np.argsort(rng.random((length, VOCAB)), -1)[:, :3].astype(np.int32)
    logprobs = np.log(np.tile([0.5, 0.2, 0.1], (length, 1))).astype(np.float16)
    return Text(rng.integers(0, VOCAB, length).astype(np.int32), np.ones(length, np.uint8), temperature, ids, logprobs)


def student(seed=0, shape=SHAPE, folder=None):
    values = embedding(seed)
    made = Student(shape, values, values, 64, train_head=False)
    if folder is not None:
        copy_layers(made, open_model(str(folder)), range(shape.layers))
    return made


@pytest.mark.parametrize("chunk", [3, 100])
def test_gradients_are_those_of_the_dense_divergence(chunk):
    torch.manual_seed(0)
    m, d, r, k = 11, 6, 9, 4
    hidden, head = torch.randn(m, d), torch.randn(r, d)
    rows = torch.stack([torch.randperm(r)[:k] for _ in range(m)])
    rows[2, 1], rows[5, :] = -1, -1
    shares = torch.softmax(torch.randn(m, k + 1), -1)
    p, rest = shares[:, :k] * (rows >= 0), shares[:, k]
    total = p.sum(-1) + rest
    p, rest = p / total[:, None], rest / total

    def dense(hidden, head):
        q = torch.softmax(hidden @ head.T, -1)
        loss = 0.0
        for at in range(m):
            outside = torch.ones(r, dtype=torch.bool)
            for row, share in zip(rows[at], p[at].double()):
                if row >= 0:
                    loss = loss + share * (share.log() - q[at, row].log())
                    outside[row] = False
            loss = loss + rest[at].double() * (rest[at].double().log() - q[at, outside].sum().log())
        return loss / m

    inputs = [x.clone().requires_grad_() for x in (hidden, head)]
    wide = [x.double().requires_grad_() for x in (hidden, head)]
    got, want = mean_divergence(inputs[0], inputs[1], rows, p, rest, chunk), dense(*wide)
    assert got.item() == pytest.approx(want.item(), rel=1e-5)
    (2 * got).backward()
    (2 * want).backward()
    for have, wanted in zip(inputs, wide):
        assert torch.allclose(have.grad.double(), wanted.grad, atol=2e-6)


def test_attention_is_that_of_pytorch():
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 7, 4, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 8)
    mask = torch.zeros(2, 7, 7).masked_fill_(~torch.ones(7, 7, dtype=torch.bool).tril(), -3e4)
    wide = [x.repeat_interleave(4 // x.shape[2], 2).transpose(1, 2) for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, scale=1.0)
    assert torch.allclose(attend(q, k, v, mask), want.transpose(1, 2).reshape(2, 7, 32), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_packed_sequences_do_not_see_each_other(family):
    shape = replace(SHAPE, family=family, qkv_bias=family == "qwen2", qk_norm=family == "qwen3")
    torch.manual_seed(2)
    model, rng = student(shape=shape), np.random.default_rng(3)
    texts = [text(rng, length) for length in (9, 5, 12)]
    with torch.no_grad():
        together = hidden_states(model, pack([texts[:2], texts[2:]], 16))
        alone = torch.cat([hidden_states(model, pack([[one]], len(one.tokens))) for one in texts])
    assert torch.allclose(together, alone, atol=1e-5)


def test_rotary_pairs_and_layers_survive_the_file(tmp_path):
    folder = write_folder(tmp_path / "teacher")
    model = student(folder=folder)
    assert all((tensors(model)[name] == value).all() for name, value in weights(0).items())
    write_gguf(tmp_path / "student.gguf", SHAPE, tensors(model), None, "", "f32")
    again = student()
    copy_layers(again, open_model(str(tmp_path / "student.gguf")), range(SHAPE.layers))
    batch = pack([[text(np.random.default_rng(4), 10)]], 10)
    with torch.no_grad():
        assert torch.equal(hidden_states(model, batch), hidden_states(again, batch))


def test_measures_are_those_of_a_loop():
    torch.manual_seed(5)
    model, rng = student(), np.random.default_rng(6)
    ids = np.arange(0, VOCAB, 2)
    model.head.data = model.head.data[torch.from_numpy(ids)]
    texts = [text(rng, 12, 0.0), text(rng, 9, 0.7), text(rng, 7, 0.0)]
    texts[0].written[:6] = 0
    found = evaluate(model, texts, ids)
    entropies, agreed = [], []
    for one in (texts[0], texts[2]):
        with torch.no_grad():
            logits = hidden_states(model, pack([[one]], len(one.tokens))) @ model.head.T
        for at in range(len(one.tokens) - 1):
            if one.written[at + 1]:
                entropies.append(torch.distributions.Categorical(logits=logits[at]).entropy().item())
                agreed.append(ids[int(logits[at].argmax())] == one.top_ids[at, 0])
    assert found["greedy"]["tokens"] == len(agreed) == 12 and found["sampled"]["tokens"] == 8
    assert found["greedy"]["agreement"] == pytest.approx(np.mean(agreed))
    order = np.argsort(entropies)[:6]
    assert found["greedy"]["certain"]["0.5"] == pytest.approx(np.mean(np.array(agreed)[order]))


def test_the_rate_rises_stays_and_falls():
    settings = Settings(teacher="", data=[], warmup=4)
    assert [rate(settings, Progress(step=step)) for step in (0, 3, 100)] == [0.25, 1, 1]
    falling = {"unit": "step", "begin": 100, "length": 10}
    assert [rate(settings, Progress(step=step, anneal=falling)) for step in (100, 105, 110)] == [1, 0.5, 0.02]


@pytest.mark.parametrize("bad", ["4", "a", "", "-1"])
def test_layers_are_checked(bad):
    with pytest.raises(DistillError, match="numbers from 0 to 3"):
        parse_layers(bad, SHAPE)


def test_sizes_are_checked():
    assert parse_sizes("layers=2,ffn=48", SHAPE) == replace(SHAPE, layers=2, ffn=48)
    for bad, words in (("depth=2", "allowed are layers"), ("heads=3", "no|not a multiple")):
        with pytest.raises(DistillError, match=words):
            parse_sizes(bad, SHAPE)


@pytest.fixture
def place(tmp_path):
    write_folder(tmp_path / "teacher")
    for number in range(2):
        write_part(tmp_path / f"data/part-{number:05}.safetensors", number, sequences=30)
    return tmp_path


def call(place, command, out, *more):
    fixed = ["--threads", "1", "--device", "cpu", "--quantize", "f32"]
    if command == "train":
        fixed += ["--teacher", str(place / "teacher"), "--data", str(place / "data"), "--output-vocab", "40"]
        fixed += ["--length", "24", "--rows", "4", "--held-out", "5", "--warmup", "2"]
    return command_line.main([command, str(place / out), *fixed, *more])


@pytest.mark.parametrize("head", [[], ["--train-head"]])
def test_an_interrupted_run_ends_with_the_same_weights(place, head):
    layers = ["--layers", "0,3", *head]
    assert call(place, "train", "whole", *layers, "--steps", "7") == 0
    for steps in ("3", "7"):
        assert call(place, "train", "parts", *layers, "--steps", steps) == 0
    whole, parts = (load_trained(place / name).state for name in ("whole", "parts"))
    assert whole["weights"].keys() == parts["weights"].keys()
    assert all(torch.equal(value, parts["weights"][name]) for name, value in whole["weights"].items())
    assert whole["sampler"] == parts["sampler"]
    files = {path.name for path in (place / "parts").iterdir()} - {"curve.png", ".lock"}
    assert files == {"checkpoint.pt", "curve.csv", "recipe.json", "student.gguf"}
    assert open_model(str(place / "parts/student.gguf")).has("lm_head.weight") == bool(head)


def test_a_signal_ends_a_run_with_a_checkpoint(place, monkeypatch, capsys):
    steps = ["--layers", "0", "--steps", "3"]
    report = command_line.report

    def interrupt(run, result):
        report(run, result)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command_line, "report", interrupt)
    assert call(place, "train", "run", *steps) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert load_trained(place / "run").state["progress"]["step"] == 0
    monkeypatch.setattr(command_line, "report", report)
    assert call(place, "train", "run", *steps, "--dtype", "bf16") == 0
    assert load_trained(place / "run").state["progress"]["step"] == 3


def test_training_lowers_the_divergence_and_annealing_goes_on(place):
    call(place, "train", "run", "--sizes", "layers=1,ffn=32", "--steps", "60", "--learning-rate", "0.01")
    assert call(place, "anneal", "end", "--source", str(place / "run"), "--steps", "20", "--output-vocab", "30") == 0
    ends = [load_trained(place / name).state for name in ("run", "end")]
    curve = ends[1]["curve"]
    assert [row["step"] for row in curve] == [0, 60, 80] and curve[2]["loss"] < curve[1]["loss"] < 4
    assert curve[2]["learning_rate"] == pytest.approx(0.0002)
    assert [len(end["token_ids"]) for end in ends] == [40, 30]
    recipe = json.loads((place / "end/recipe.json").read_text())
    assert recipe["progress"]["step"] == 80 and recipe["data"][0]["model"] == "tiny" and recipe["held_out"]["greedy"]["tokens"]


def test_one_command_makes_a_student(place):
    (place / "own.jsonl").write_text('{"prompt": "a"}\n')
    options = ["--teacher", str(place / "teacher"), "--prompts", str(place / "own.jsonl"), "--steps", "6", "--text", "100"]
    options += ["--trbench", str(write_trbench(place / "trbench")), "--output-vocab", "40", "--held-out", "5", "--length", "24"]
    # Called again, it is complete, and nothing is trained any more.
    for _ in range(2):
        assert call(place, "make", "made", *options) == 0
        progress = load_trained(place / "made").state["progress"]
        assert (progress["step"], progress["anneal"]) == (6, {"unit": "step", "begin": 3, "length": 3.0})
    recipe = json.loads((place / "made/recipe.json").read_text())
    assert recipe["settings"]["layers"] == "0,1,2,3" and recipe["student"]["file"] == "student.gguf"


def test_other_settings_are_named(place, capsys):
    call(place, "train", "run", "--layers", "0", "--steps", "1")
    assert call(place, "train", "run", "--layers", "1", "--steps", "2") == 1
    assert "`layers` was 0, is 1" in capsys.readouterr().err
    assert call(place, "train", "new", "--steps", "2", "--rows", "0") == 1
    assert "--rows: 0 is not allowed" in capsys.readouterr().err
    with command_line.locked(place / "run"):
        assert call(place, "train", "run", "--layers", "0", "--steps", "2") == 1
    assert "another process trains" in capsys.readouterr().err
    assert call(place, "anneal", "absent", "--steps", "1") == 1
    assert "has no run" in capsys.readouterr().err
