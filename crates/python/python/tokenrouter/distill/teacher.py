"""Reads models of the Llama and Qwen families, from GGUF or from safetensors, by the names that Hugging Face gives tensors."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

import numpy as np

from . import DistillError

#: Names inside a layer: Hugging Face's and GGUF's.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Shape:
    """Sizes and constants."""

    family: str
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    qkv_bias: bool
    qk_norm: bool


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if layer:
        return f"blk.{layer[1]}.{LAYER_NAMES.get(layer[2], layer[2])}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{TOP_NAMES.get(stem, stem)}.{kind}"


#: Names of tensors that are computed, in GGUF's words.
_KNOWN = re.compile(
    rf"({'|'.join(TOP_NAMES.values())})\.weight"
    rf"|blk\.\d+\.({'|'.join(LAYER_NAMES.values())})\.weight"
    r"|blk\.\d+\.attn_[qkv]\.bias"
)


def check_names(path: Path, names: Iterable[str]) -> None:
    """Refuses a model with tensors that would not be computed. ``names`` are GGUF's."""
    unknown = next((name for name in names if not _KNOWN.fullmatch(name)), None)
    if unknown is not None:
        raise DistillError(f"`{path}`: tensor `{unknown}` belongs to no model of the families {', '.join(FAMILIES)}")


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as GGUF files of the Llama family have them: the two halves of every head, taken in turn."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def uninterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes `interleave`."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


class Model:
    """A model's shape and tensors, which are read when they are asked for."""

    path: Path
    shape: Shape
    end_tokens: List[int]
    #: The chat template (Jinja), if there is one, and the texts of the tokens that it may name.
    template: Optional[str]
    special: Dict[str, str]

    def has(self, name: str) -> bool:
        raise NotImplementedError

    def tensor(self, name: str) -> np.ndarray:
        """A tensor in f32, rotary pairs by halves."""
        raise NotImplementedError

    def embedding_digest(self) -> str:
        """SHA-256 of the embedding as the files hold it, as the engine computes it."""
        raise NotImplementedError

    def digests(self) -> Dict[str, str]:
        """SHA-256 of the files of weights."""
        raise NotImplementedError

    def head(self) -> np.ndarray:
        """``[vocab, d_model]``."""
        return self.tensor(HEAD if self.has(HEAD) else EMBEDDING)


class Gguf(Model):
    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        try:
            reader = GGUFReader(str(path))
        except (ValueError, OSError) as error:
            raise DistillError(f"`{path}` cannot be read as GGUF: {error}") from error
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        family = self.value("general.architecture")
        if family not in FAMILIES:
            raise DistillError(f"`{path}`: architecture `{family}` is not supported, supported are {', '.join(FAMILIES)}")
        if "rope_freqs.weight" in self.tensors or self.value(f"{family}.rope.scaling.type", "none") != "none":
            raise DistillError(f"`{path}`: scaled rotary frequencies are not supported")
        check_names(path, self.tensors)

        def size(key: str, default: Any = None) -> Any:
            return self.value(f"{family}.{key}", default)

        heads, d_model = size("attention.head_count"), size("embedding_length")
        embedding = self.tensors.get("token_embd.weight")
        self.shape = Shape(
            family=family,
            layers=size("block_count"),
            d_model=d_model,
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_dim=size("attention.key_length", d_model // heads),
            ffn=size("feed_forward_length"),
            vocab=int(embedding.shape[1]) if embedding is not None else size("vocab_size"),
            context=size("context_length"),
            eps=size("attention.layer_norm_rms_epsilon"),
            rope_theta=size("rope.freq_base", 10_000.0),
            qkv_bias="blk.0.attn_q.bias" in self.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in self.tensors,
        )
        ids = [self.value(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom")]
        self.end_tokens = sorted({token for token in ids if token >= 0})
        self.template = self.value("tokenizer.chat_template", "") or None
        self.special = {f"{name}_token": self._text(f"{name}_token_id") for name in ("bos", "eos")}

    def value(self, key: str, default: Any = None) -> Any:
        field = self.fields.get(key)
        if field is None and default is None:
            raise DistillError(f"`{self.path}`: metadata key `{key}` is missing")
        return default if field is None else field.contents()

    def _text(self, key: str) -> str:
        token, tokens = self.value(f"tokenizer.ggml.{key}", -1), self.fields.get("tokenizer.ggml.tokens")
        return tokens.contents(token) if tokens is not None and token >= 0 else ""

    def has(self, name: str) -> bool:
        return gguf_name(name) in self.tensors

    def tensor(self, name: str) -> np.ndarray:
        from gguf.quants import dequantize

        stored = self.tensors.get(gguf_name(name))
        if stored is None:
            raise DistillError(f"`{self.path}`: tensor `{gguf_name(name)}` is missing")
        shape = [int(size) for size in reversed(stored.shape)]
        values = dequantize(stored.data, stored.tensor_type).astype(np.float32).reshape(shape)
        if self.shape.family == "llama":
            for part, heads in (("q_proj", self.shape.heads), ("k_proj", self.shape.kv_heads)):
                if f".{part}." in name:
                    values = uninterleave(values, heads)
        return np.ascontiguousarray(values)

    def embedding_digest(self) -> str:
        return hashlib.sha256(self.tensors["token_embd.weight"].data.tobytes()).hexdigest()

    def digests(self) -> Dict[str, str]:
        return {self.path.name: sha256(self.path)}


class Folder(Model):
    """A folder with ``config.json`` and safetensors."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        config = self._json("config.json")
        if config is None:
            raise DistillError(f"`{path}` has no `config.json`")
        family = str(config.get("model_type"))
        if family not in FAMILIES:
            raise DistillError(f"`{path}`: model type `{family}` is not supported, supported are {', '.join(FAMILIES)}")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise DistillError(f"`{path}`: scaled rotary frequencies are not supported")
        self.files = [safe_open(str(file), framework="pt") for file in sorted(path.glob("*.safetensors"))]
        self.where = {name: file for file in self.files for name in file.keys()}
        # Old files store the frequencies, which follow from the base.
        check_names(path, (gguf_name(name) for name in self.where if not name.endswith("rotary_emb.inv_freq")))
        heads, layer = config["num_attention_heads"], "model.layers.0.self_attn"
        self.shape = Shape(
            family=family,
            layers=config["num_hidden_layers"],
            d_model=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            context=config["max_position_embeddings"],
            eps=config["rms_norm_eps"],
            rope_theta=config.get("rope_theta") or rope.get("rope_theta") or 10_000.0,
            qkv_bias=f"{layer}.q_proj.bias" in self.where,
            qk_norm=f"{layer}.q_norm.weight" in self.where,
        )
        if config.get("tie_word_embeddings", False):
            self.where.pop(HEAD, None)
        ids = (self._json("generation_config.json") or {}).get("eos_token_id", config.get("eos_token_id"))
        self.end_tokens = sorted({ids} if isinstance(ids, int) else set(ids or []))
        tokenizer = self._json("tokenizer_config.json") or {}
        template = tokenizer.get("chat_template")
        own = path / "chat_template.jinja"
        self.template = own.read_text() if own.is_file() else template if isinstance(template, str) else None
        texts = {name: tokenizer.get(name) or "" for name in ("bos_token", "eos_token")}
        self.special = {name: text["content"] if isinstance(text, dict) else text for name, text in texts.items()}

    def _json(self, name: str) -> Optional[Dict[str, Any]]:
        file = self.path / name
        return json.loads(file.read_text()) if file.is_file() else None

    def has(self, name: str) -> bool:
        return name in self.where

    def tensor(self, name: str) -> np.ndarray:
        if name not in self.where:
            raise DistillError(f"`{self.path}`: tensor `{name}` is missing")
        return self.where[name].get_tensor(name).float().numpy()

    def embedding_digest(self) -> str:
        return hashlib.sha256(self.tensor(EMBEDDING).astype("<f4").tobytes()).hexdigest()

    def digests(self) -> Dict[str, str]:
        return {file.name: sha256(file) for file in sorted(self.path.glob("*.safetensors"))}


def open_model(path: str) -> Model:
    """A GGUF file or a folder with safetensors."""
    place = Path(path)
    if place.is_dir():
        return Folder(place)
    if place.is_file():
        return Gguf(place)
    raise DistillError(f"there is no model `{path}`: allowed are a GGUF file and a folder with safetensors")
