"""Tiny teachers and texts for the tests of `tokenrouter.distill`."""

import json
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenrouter.distill.teacher import Shape

VOCAB, TOP = 61, 5
SHAPE = Shape(
    family="llama",
    layers=4,
    d_model=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    vocab=VOCAB,
    context=128,
    eps=2**-17,
    rope_theta=10_000.0,
    qkv_bias=False,
    qk_norm=False,
)


def weights(seed, shape=SHAPE, layers=None):
    """Random weights by Hugging Face's names, without embedding and head."""
    rng = np.random.default_rng(seed)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def draw(*size):
        return (rng.standard_normal(size) * size[-1] ** -0.5).astype(np.float32)

    found = {"model.norm.weight": 1 + 0.1 * draw(shape.d_model)}
    for layer in range(shape.layers if layers is None else layers):
        name = f"model.layers.{layer}."
        for part, size in (
            ("input_layernorm", None),
            ("self_attn.q_proj", (q, shape.d_model)),
            ("self_attn.k_proj", (kv, shape.d_model)),
            ("self_attn.v_proj", (kv, shape.d_model)),
            ("self_attn.o_proj", (shape.d_model, q)),
            ("post_attention_layernorm", None),
            ("mlp.gate_proj", (shape.ffn, shape.d_model)),
            ("mlp.up_proj", (shape.ffn, shape.d_model)),
            ("mlp.down_proj", (shape.d_model, shape.ffn)),
        ):
            found[f"{name}{part}.weight"] = 1 + 0.1 * draw(shape.d_model) if size is None else draw(*size)
    return found


def embedding(seed):
    return np.random.default_rng(seed).standard_normal((VOCAB, SHAPE.d_model)).astype(np.float32)


def write_folder(path, seed=0):
    """A teacher as a folder with safetensors."""
    path.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": SHAPE.layers,
        "hidden_size": SHAPE.d_model,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.kv_heads,
        "intermediate_size": SHAPE.ffn,
        "vocab_size": VOCAB,
        "max_position_embeddings": SHAPE.context,
        "rms_norm_eps": SHAPE.eps,
        "rope_theta": SHAPE.rope_theta,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
    }
    (path / "config.json").write_text(json.dumps(config))
    save_file({**weights(seed), "model.embed_tokens.weight": embedding(seed)}, str(path / "model.safetensors"))
    return path


def write_part(path, seed, sequences=12, longest=20, **changes):
    """A file of texts with random tokens and probabilities; returns its tensors."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest + 1, sequences)
    n = int(lengths.sum())
    logits = np.sort(rng.standard_normal((n, VOCAB)) * 3, -1)[:, ::-1]
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tensors = {
        "tokens": rng.integers(0, VOCAB, n).astype(np.int32),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "written": (rng.random(n) < 0.8).astype(np.uint8),
        "temperature": rng.choice([0.0, 0.8], sequences).astype(np.float32),
        "top_ids": np.argsort(rng.random((n, VOCAB)), -1)[:, :TOP].astype(np.int32),
        "top_logprobs": logprobs[:, :TOP].astype(np.float16),
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"model": "tiny", "seed": str(seed), "top_k": str(TOP)})
    return tensors


#: Stands in for `trbench generate`: notes its arguments, and writes one file.
TRBENCH = """#!{python}
import json, sys
sys.path[:0] = {path}
from pathlib import Path
from distilled import write_part
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
out = Path(options["--out"])
with open(out.parent.parent / "calls.jsonl", "a") as calls:
    calls.write(json.dumps([sys.argv[1], options]) + "\\n")
if options["--seed"] == "9":
    sys.exit(3)
write_part(out / "part-00000.safetensors", int(options["--seed"]))
"""


def write_trbench(path):
    """A program that stands in for `trbench`."""
    path.write_text(TRBENCH.format(python=sys.executable, path=sys.path))
    path.chmod(0o755)
    return path
