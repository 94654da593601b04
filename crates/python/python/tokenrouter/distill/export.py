"""What a run leaves: the student as GGUF, the recipe, and the curve."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
from importlib import metadata as packages
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from . import DistillError
from .teacher import Shape, gguf_name, interleave, sha256

STUDENT, RECIPE, CURVE, PICTURE = "student.gguf", "recipe.json", "curve.csv", "curve.png"
QUANTIZATIONS = ("q8_0", "q4_1", "q4_0", "f16", "f32")


def write_atomically(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def write_gguf(
    path: Path,
    shape: Shape,
    tensors: Dict[str, np.ndarray],
    token_ids: Optional[np.ndarray],
    embedding_digest: str,
    quantize: str,
) -> None:
    """Writes a student as the engine reads it: GGUF without an embedding.

    ``tensors`` are f32 by Hugging Face's names; with a head only if that is not a part of the embedding. ``token_ids``,
    ascending, are the tokens of the head's rows; ``None``: all. Matrices are quantised, vectors stay f32.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize as quantized

    if quantize not in QUANTIZATIONS:
        raise DistillError(f"--quantize: `{quantize}` is not allowed, allowed are {', '.join(QUANTIZATIONS)}")
    kind = GGMLQuantizationType[quantize.upper()]
    unfinished = path.with_name(path.name + ".tmp")
    writer = GGUFWriter(str(unfinished), shape.family)
    writer.add_type("model")
    writer.add_name("student")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.d_model)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_string("tokenrouter.embedding.sha256", embedding_digest)
    if token_ids is not None:
        writer.add_array("tokenrouter.output.token_ids", [int(token) for token in token_ids])
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise DistillError(f"tensor `{name}` holds values that are no finite numbers")
        if shape.family == "llama":
            for part, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
                value = interleave(value, heads) if f".{part}." in name else value
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim == 1 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), value)
        elif kind == GGMLQuantizationType.F16:
            writer.add_tensor(gguf_name(name), value.astype(np.float16))
        else:
            writer.add_tensor(gguf_name(name), quantized(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)


def write_curve(folder: Path, rows: List[Dict[str, Any]]) -> None:
    """The curve as CSV, and as a picture where matplotlib is installed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows)
    write_atomically(folder / CURVE, text.getvalue().encode())
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(10, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 3), ("agreement", "kl", "auc")):
        for kind in ("greedy", "sampled"):
            axes.plot([row["tokens"] / 1e6 for row in rows], [row[f"{kind}_{name}"] for row in rows], label=kind)
        axes.set(xlabel="million tokens", title=name)
        axes.legend()
    figure.savefig(folder / PICTURE, dpi=120)


def machine(threads: int, device: str, dtype: str) -> Dict[str, Any]:
    """What the run ran on."""
    model = platform.processor()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "threads": threads, "device": device, "dtype": dtype}


def versions() -> Dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("tokenrouter", "torch", "numpy", "gguf", "safetensors"):
        try:
            found[name] = packages.version(name)
        except packages.PackageNotFoundError:
            pass
    return found


def data_story(corpus: Any) -> List[Dict[str, Any]]:
    """For every folder and way in which data were made: files, sequences and tokens."""
    stories: Dict[str, Dict[str, Any]] = {}
    for name, part in corpus.parts.items():
        story = {"folder": str(Path(name).parent), **dict(sorted(part.metadata.items()))}
        entry = stories.setdefault(json.dumps(story), {**story, "files": 0, "sequences": 0, "tokens": 0})
        entry["files"] += 1
        entry["sequences"] += len(part)
        entry["tokens"] += len(part.tokens)
    return list(stories.values())


def write_recipe(folder: Path, recipe: Dict[str, Any]) -> None:
    write_atomically(folder / RECIPE, (json.dumps(recipe, indent=2, allow_nan=True) + "\n").encode())


def written(path: Path, quantize: str) -> Dict[str, Any]:
    """The recipe's entry for a file of weights."""
    return {"file": path.name, "quantization": quantize, "bytes": path.stat().st_size, "sha256": sha256(path)}
