"""`tokenrouter.distill` without PyTorch: data, vocabulary, prompts, measures, files."""

import hashlib
import json

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

from distilled import SHAPE, TOP, VOCAB, embedding, weights, write_part, write_trbench  # noqa: E402
from tokenrouter.distill import DistillError, metrics, prompts  # noqa: E402
from tokenrouter.distill.__main__ import main  # noqa: E402
from tokenrouter.distill.data import Corpus, Sampler, choose_vocabulary, row_of, targets  # noqa: E402
from tokenrouter.distill.export import write_curve, write_gguf  # noqa: E402
from tokenrouter.distill.teacher import open_model  # noqa: E402


def test_auc_counts_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        score, positive = rng.integers(0, 6, 40), rng.random(40) < 0.4
        pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
        assert metrics.auc(score, positive) == pytest.approx(np.mean(pairs))
    assert np.isnan(metrics.auc(np.ones(3), np.zeros(3, bool)))


def test_agreement_of_the_most_certain():
    entropy = np.array([0.4, 0.1, 0.3, 0.2])
    agrees = np.array([False, True, False, True])
    assert metrics.certain_agreement(entropy, agrees, (0.5, 1.0)) == {"0.5": 1.0, "1": 0.5}


def test_repeated_runs_are_found():
    rng = np.random.default_rng(1)
    for length in (2, 3):
        for _ in range(20):
            tokens = rng.integers(0, 3, 30).astype(np.int32)
            runs = [tuple(tokens[at : at + length]) for at in range(30 - length + 1)]
            later = [at for at, run in enumerate(runs) if run in runs[:at]]
            wanted = [any(at <= place < at + length for at in later) for place in range(30)]
            assert metrics.repeated(tokens, length).tolist() == wanted


def test_data_are_read_packed_and_held_out(tmp_path):
    parts = [write_part(tmp_path / f"a/part-{number:05}.safetensors", number) for number in range(3)]
    corpus = Corpus([str(tmp_path)], VOCAB, one_of=3)
    assert corpus.tokens() == sum(len(part["tokens"]) for part in parts)
    for name, part in corpus.parts.items():
        both = [corpus.choose(name, held_out=held_out).tolist() for held_out in (False, True)]
        assert sorted(both[0] + both[1]) == list(range(len(part)))
    sampler = Sampler(corpus, rows=3, length=24, seed=5)
    batch = sampler.batch()
    assert batch.tokens.shape == (3, 24) and len(batch.used) == len(batch.top_ids) == (batch.segments >= 0).sum()
    flat = np.concatenate([text.tokens for text in batch.sequences])
    assert (batch.tokens.ravel()[batch.used] == flat).all()
    starts = batch.positions.ravel()[batch.used] == 0
    assert starts.sum() == len(batch.sequences)
    tensors = parts[0]
    text = corpus.parts[str(tmp_path / "a/part-00000.safetensors")].sequence(1, 3)
    begin = tensors["offsets"][1]
    assert (text.top_ids == tensors["top_ids"][begin : begin + 3]).all() and len(text.tokens) == 3


def test_texts_with_the_same_beginning_stay_together(tmp_path):
    same = {"tokens": np.tile(np.arange(60, dtype=np.int32), 8), "offsets": np.arange(0, 481, 60, dtype=np.int64)}
    sizes = {"written": np.ones(480, np.uint8), "temperature": np.ones(8, np.float32)}
    top = {"top_ids": np.zeros((480, TOP), np.int32), "top_logprobs": np.zeros((480, TOP), np.float16)}
    tokens = same["tokens"].copy()
    tokens[59::60] = np.arange(8)  # the ends differ
    write_part(tmp_path / "part-00000.safetensors", 0, **{**same, **sizes, **top, "tokens": tokens})
    corpus = Corpus([str(tmp_path)], VOCAB, one_of=2)
    assert len(corpus.choose(next(iter(corpus.parts)), held_out=True)) in (0, 8)


def test_every_sequence_is_used_before_any_is_used_again(tmp_path):
    write_part(tmp_path / "part-00000.safetensors", 0)
    sampler = Sampler(Corpus([str(tmp_path)], VOCAB, one_of=None), rows=2, length=20, seed=1)
    assert sorted(sampler.draw()[1] for _ in range(12)) == list(range(12))
    [sampler.draw() for _ in range(7)]
    write_part(tmp_path / "part-00001.safetensors", 1)
    sampler.refresh()
    # Five are left of the old file; the twelve new ones join them.
    assert len({sampler.draw() for _ in range(17)}) == 17


def test_a_sampler_goes_on_where_it_was(tmp_path):
    for number in range(2):
        write_part(tmp_path / f"part-{number:05}.safetensors", number)
    make = lambda: Sampler(Corpus([str(tmp_path)], VOCAB, one_of=4), rows=2, length=24, seed=3)  # noqa: E731
    first, second = make(), make()
    first.batch()
    second.restore(json.loads(json.dumps(first.state())))
    for _ in range(5):
        assert (first.batch().tokens == second.batch().tokens).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.full(3, VOCAB, np.int32)}, "sizes are"),
        ({"offsets": np.zeros(13, np.int64)}, "must ascend"),
    ],
)
def test_bad_data_name_the_file(tmp_path, changes, words):
    write_part(tmp_path / "part-00000.safetensors", 0, **changes)
    with pytest.raises(DistillError, match=words) as error:
        Corpus([str(tmp_path)], VOCAB)
    assert "part-00000" in str(error.value)


def test_what_is_no_data_is_refused(tmp_path):
    (tmp_path / "part-00000.safetensors").write_bytes(b"nothing")
    with pytest.raises(DistillError, match="no data of `trbench generate`"):
        Corpus([str(tmp_path)], VOCAB)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DistillError, match="no text to train on"):
        choose_vocabulary(Corpus([str(tmp_path / "empty")], VOCAB), 20, [])
    with pytest.raises(DistillError, match="does not exist"):
        Corpus([str(tmp_path / "absent")], VOCAB)


def test_training_waits_for_files_that_are_not_whole(tmp_path):
    write_part(tmp_path / "part-00000.safetensors", 0)
    sampler = Sampler(Corpus([str(tmp_path)], VOCAB), rows=2, length=20, seed=1)
    write_part(tmp_path / "whole", 1)
    half = tmp_path / "part-00001.safetensors"
    half.write_bytes((tmp_path / "whole").read_bytes()[:-5])
    with pytest.warns(UserWarning, match="left out for now"):
        sampler.refresh()
    assert len(sampler.places) == 12
    (tmp_path / "whole").rename(half)
    sampler.refresh()
    assert len(sampler.places) == 24


def test_vocabulary_has_the_most_mass(tmp_path):
    tensors = write_part(tmp_path / "part-00000.safetensors", 7)
    corpus = Corpus([str(tmp_path)], VOCAB)
    mass = np.zeros(VOCAB)
    for ids, logprobs in zip(tensors["top_ids"], tensors["top_logprobs"]):
        for token, logprob in zip(ids, logprobs):
            mass[token] += np.exp(float(logprob))
    always = [int(mass.argmin())]
    chosen, share = choose_vocabulary(corpus, 20, always)
    best = sorted(range(VOCAB), key=lambda token: -mass[token])[:19] + always
    assert chosen.tolist() == sorted(best) and share == pytest.approx(mass[best].sum() / mass.sum())
    with pytest.raises(DistillError, match="allowed are 1 to 61"):
        choose_vocabulary(corpus, 62, always)


def test_targets_are_distributions_over_what_the_student_can_write():
    rows = row_of(np.array([3, 5, 8]), 10)
    ids = np.array([[8, 4, 3], [0, 1, 2]])
    logprobs = np.log(np.array([[0.5, 0.2, 0.1], [0.4, 0.3, 0.2]])).astype(np.float16)
    found, p, rest = targets(ids, logprobs, rows)
    assert found.tolist() == [[2, -1, 0], [-1, -1, -1]]
    # 0.2 is left out: of 0.8, 0.5 and 0.1 are of tokens, 0.2 is the rest.
    assert p[0] == pytest.approx([0.625, 0, 0.125], abs=1e-3) and rest[0] == pytest.approx(0.25, abs=2e-3)
    assert p.sum(-1) + rest == pytest.approx([1, 1])


TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<s>be kind<e>\n{% endif %}"
    "<{{ m.role }}>{{ m.content }}<e>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_the_teacher_makes_prompts(tmp_path):
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    around = prompts.chat(TEMPLATE, {"eos_token": "<e>"})
    assert around == ("<s>be kind<e>\n<user>", "\n<assistant>")
    first = list(prompts.first_round(around, 50, seed=2))
    assert first == list(prompts.first_round(around, 50, seed=2)) != list(prompts.first_round(around, 50, seed=3))
    assert {prompt.get("then", [None])[0] for prompt in first} == {None, "\n<assistant>"}
    with pytest.raises(DistillError, match="no text around"):
        prompts.chat("{{ messages[0].content }}", {})


def test_the_second_round_has_the_turns_of_the_first(tmp_path):
    written = np.array([0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1], np.uint8)
    changes = {"tokens": np.arange(12, dtype=np.int32), "written": written, "offsets": np.array([0, 8, 12], np.int64)}
    top = {"top_ids": np.zeros((12, TOP), np.int32), "top_logprobs": np.zeros((12, TOP), np.float16)}
    write_part(tmp_path / "part-00000.safetensors", 0, temperature=np.ones(2, np.float32), **changes, **top)
    # The second text was cut before its answer.
    assert list(prompts.second_round(Corpus([str(tmp_path)], VOCAB))) == [{"tokens": [0, 1, 2, 3, 4, 5]}]


def test_own_prompts_are_checked(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"text": "b"}\n')
    with pytest.raises(DistillError, match="own.jsonl:3: exactly one of"):
        prompts.read_own(str(file))


@pytest.mark.parametrize(("quantize", "error"), [("f32", 0), ("f16", 1e-3), ("q8_0", 0.02), ("q4_1", 0.2), ("q4_0", 0.3)])
def test_a_student_file_has_the_weights_and_the_tokens(tmp_path, quantize, error):
    path, values = tmp_path / "student.gguf", weights(1, layers=2)
    tokens = np.array([2, 5, 60])
    write_gguf(path, SHAPE, values, tokens, "ab" * 32, quantize)
    file = open_model(str(path))
    assert not file.has("model.embed_tokens.weight") and file.shape == SHAPE
    assert file.fields["tokenrouter.output.token_ids"].contents() == tokens.tolist()
    assert file.fields["tokenrouter.embedding.sha256"].contents() == "ab" * 32
    for name, value in values.items():
        allowed = 0 if value.ndim == 1 else error
        assert np.abs(file.tensor(name) - value).max() <= allowed * np.abs(value).max(), name
    if quantize == "f32":
        # Llama's files have the rows x[0], x[d/2], x[1], ... of every head, written out here.
        stored, rows, half = file.tensors["blk.1.attn_q.weight"].data, values["model.layers.1.self_attn.q_proj.weight"], 4
        order = [head * 8 + part * half + at for head in range(4) for at in range(half) for part in range(2)]
        assert (stored.reshape(32, 32) == rows[order]).all()


def test_a_file_with_a_nan_is_not_written(tmp_path):
    values = weights(1, layers=1)
    values["model.norm.weight"][3] = np.nan
    with pytest.raises(DistillError, match="`model.norm.weight` holds"):
        write_gguf(tmp_path / "student.gguf", SHAPE, values, None, "", "f32")
    assert not (tmp_path / "student.gguf").exists()


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.experts.0.up_proj.weight"])
def test_a_model_with_more_than_is_computed_is_refused(tmp_path, name):
    path = tmp_path / "student.gguf"
    write_gguf(path, SHAPE, {**weights(0, layers=1), name: np.ones((32, 32), np.float32)}, None, "", "f32")
    with pytest.raises(DistillError, match="belongs to no model of the families llama"):
        open_model(str(path))


def large(path):
    """A teacher without layers, with a chat template."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    for add, value in (
        (writer.add_block_count, 0),
        (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 4),
        (writer.add_context_length, 128),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_eos_token_id, 2),
        (writer.add_token_list, ["<s>", "a", "<e>"]),
        (writer.add_chat_template, TEMPLATE),
    ):
        add(value)
    writer.add_tensor("token_embd.weight", embedding(4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_embeddings_have_the_digest_of_their_bytes(tmp_path):
    file = open_model(str(large(tmp_path / "large.gguf")))
    assert (file.shape.vocab, file.end_tokens, file.special["eos_token"]) == (VOCAB, [2], "<e>")
    assert file.embedding_digest() == hashlib.sha256(embedding(4).astype("<f4").tobytes()).hexdigest()


def test_text_is_written_in_two_rounds(tmp_path, capsys):
    pytest.importorskip("jinja2", reason="jinja2 is not installed")
    program = write_trbench(tmp_path / "trbench")
    teacher, run = str(large(tmp_path / "large.gguf")), tmp_path / "run"
    fixed = ["data", str(run), "--teacher", teacher, "--trbench", str(program), "--text", "8000"]
    assert main(fixed) == 0
    assert capsys.readouterr().out.strip() == str(run / "data")
    calls = [json.loads(line) for line in (run / "calls.jsonl").read_text().splitlines()]
    assert [(name, call["--tokens"], call["--temperature"]) for name, call in calls] == [
        ("generate", "1000", "1"),
        ("generate", "7000", "0,0.6,0.8,0.8,1"),
    ]
    assert all(call["--model"] == teacher for _, call in calls)
    openings, written = (prompts.read_own(call["--prompts"]) for _, call in calls)
    assert len(openings) == 64 and {"prompt", "then"} <= openings[0].keys() | openings[1].keys()
    assert any("tokens" in prompt for prompt in written)
    # Prompts of one's own are all there is.
    (tmp_path / "own.jsonl").write_text('{"prompt": "a"}\n')
    again = [*fixed, "--prompts", str(tmp_path / "own.jsonl")]
    assert main([again[0], str(tmp_path / "own"), *again[2:]]) == 0
    assert len((tmp_path / "own/calls.jsonl").read_text().splitlines()) == 1
    assert main([*again, "--seed", "9"]) == 1
    assert "exit code 3" in capsys.readouterr().err


def test_the_curve_is_a_table(tmp_path):
    row = {
        "tokens": 5,
        "step": 1,
        **{f"{kind}_{name}": 0.5 for kind in ("greedy", "sampled") for name in ("agreement", "kl", "auc")},
    }
    write_curve(tmp_path, [row, {**row, "tokens": 9}])
    lines = (tmp_path / "curve.csv").read_text().split()
    assert len(lines) == 3 and lines[2].startswith("9,1,0.5")


def test_wrong_calls_say_what_is_wrong(tmp_path, capsys):
    assert main(["data", str(tmp_path), "--teacher", str(tmp_path / "absent")]) == 1
    assert "there is no model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path), "--teacher", "x", "--data", "y"])
    assert "--minutes --steps" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", "make", "data", "train", "anneal", "evaluate", "export"])
def test_help_can_be_printed(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*filter(None, [command]), "--help"])
    assert end.value.code == 0 and "usage:" in capsys.readouterr().out
