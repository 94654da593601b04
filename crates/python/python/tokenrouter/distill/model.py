"""A decoder of the Llama and Qwen families in PyTorch, for training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import DistillError
from .teacher import EMBEDDING, HEAD, NORM, Model, Shape

#: Added to the scores of what may not be attended to. Finite, so that rows without a token have no NaN.
MASKED = -3e4
#: Standard deviation of new matrices.
NEW = 0.02


def device_and_dtype(device: str, dtype: str) -> Tuple[torch.device, torch.dtype]:
    """``auto``: the GPU if there is one; bf16 where the device multiplies it fast, f32 otherwise."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bf16" if device != "cpu" or _cpu_multiplies_bf16() else "f32"
    return torch.device(device), {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]


def _cpu_multiplies_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention by plain batched products, whose backward pass is faster on CPUs than that of the fused ones.

    ``q`` ``[B, T, heads, d]``, already scaled; ``k`` and ``v`` ``[B, T, kv_heads, d]``; ``mask`` ``[B, T, T]``, added.
    """
    (batch, t, heads, d), kv = q.shape, k.shape[2]
    group = heads // kv
    q = q.view(batch, t, kv, group, d).permute(0, 2, 3, 1, 4).reshape(batch * kv, group * t, d)
    k, v = (x.transpose(1, 2).reshape(batch * kv, t, d) for x in (k, v))
    added = mask[:, None, None].expand(batch, kv, group, t, t).reshape(batch * kv, group * t, t)
    weights = torch.baddbmm(added, q, k.transpose(1, 2)).softmax(-1)
    out = torch.bmm(weights, v).view(batch, kv, group, t, d)
    return out.permute(0, 3, 1, 2, 4).reshape(batch, t, heads * d)


def project(shape: Shape, x: Tensor, cos: Tensor, sin: Tensor, weights: Sequence[Optional[Tensor]]) -> List[Tensor]:
    """Queries (scaled), keys and values ``[B, T, heads, d]``; ``weights`` are norm, qkv, its bias, and the norms of q and k."""
    norm, qkv, bias, q_norm, k_norm = weights
    kv = shape.kv_heads * shape.head_dim
    bias = None if bias is None else bias.to(x.dtype)
    projected = F.linear(rms(x, norm, shape.eps), qkv.to(x.dtype), bias)
    q, k, v = (p.unflatten(-1, (-1, shape.head_dim)) for p in projected.split([shape.heads * shape.head_dim, kv, kv], -1))
    if q_norm is not None:
        q, k = rms(q, q_norm, shape.eps), rms(k, k_norm, shape.eps)
    return [rotate(q, cos, sin) * shape.head_dim**-0.5, rotate(k, cos, sin), v]


def finish(shape: Shape, x: Tensor, attended: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The rest of a block; ``weights`` are those of the attention's output, norm, gate and up, down."""
    out, norm, gate_up, down = weights
    x = x + F.linear(attended, out.to(x.dtype))
    gate, up = F.linear(rms(x, norm, shape.eps), gate_up.to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down.to(x.dtype))


class Layer(nn.Module):
    """One block. The projections of q, k and v are one matrix, and so are gate and up: fewer and larger products."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

        def matrix(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size).normal_(0, NEW))

        def ones(size: int) -> nn.Parameter:
            return nn.Parameter(torch.ones(size))

        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm, self.ffn_norm = ones(shape.d_model), ones(shape.d_model)
        self.qkv, self.out = matrix(q + 2 * kv, shape.d_model), matrix(shape.d_model, q)
        self.gate_up, self.down = matrix(2 * shape.ffn, shape.d_model), matrix(shape.d_model, shape.ffn)
        self.qkv_bias = nn.Parameter(torch.zeros(q + 2 * kv)) if shape.qkv_bias else None
        self.q_norm = ones(shape.head_dim) if shape.qk_norm else None
        self.k_norm = ones(shape.head_dim) if shape.qk_norm else None


class Student(nn.Module):
    """Layers, a final norm, the teacher's embedding (frozen), and a head for some tokens (frozen unless ``train_head``)."""

    embedding: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, embedding: np.ndarray, head: np.ndarray, length: int, train_head: bool) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.d_model))
        self.head = nn.Parameter(torch.from_numpy(np.ascontiguousarray(head)), requires_grad=train_head)
        self.register_buffer("embedding", torch.from_numpy(embedding), persistent=False)
        frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).double() / shape.head_dim)
        angles = torch.outer(torch.arange(length).double(), frequencies)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.functions: Tuple[Callable[..., List[Tensor]], Callable[..., Tensor]] = (project, finish)

    def place(self, device: torch.device, dtype: torch.dtype) -> "Student":
        """Moves it to a device. Weights that are trained stay f32, what is frozen takes the dtype of the products."""
        self.to(device)
        for name in ("embedding", "cos", "sin"):
            setattr(self, name, getattr(self, name).to(dtype))
        if not self.head.requires_grad:
            self.head.data = self.head.data.to(dtype)
        return self

    def compile_layers(self) -> None:
        """Compiles what is between the products, once for all layers."""
        self.functions = (torch.compile(project, dynamic=False), torch.compile(finish, dynamic=False))

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """The normed stream ``[B, T, d_model]`` of packed sequences (see `data.Batch`)."""
        t = tokens.shape[1]
        # Only the shapes of training are worth compiling for.
        before, after = self.functions if self.training else (project, finish)
        x = self.embedding[tokens]
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        visible = (segments[:, :, None] == segments[:, None, :]) & torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        mask = torch.zeros(visible.shape, dtype=x.dtype, device=x.device).masked_fill_(~visible, MASKED)
        for layer in self.layers:
            into = [layer.attention_norm, layer.qkv, layer.qkv_bias, layer.q_norm, layer.k_norm]
            q, k, v = before(self.shape, x, cos, sin, into)
            after_weights = [layer.out, layer.ffn_norm, layer.gate_up, layer.down]
            x = after(self.shape, x, attend(q, k, v, mask), after_weights)
        return rms(x, self.norm, self.shape.eps)

    def trained(self) -> Dict[str, Tensor]:
        """The weights that training changes."""
        return {name: value for name, value in self.named_parameters() if value.requires_grad}


def parse_sizes(text: str, teacher: Shape) -> Shape:
    """``layers=4,heads=9,kv_heads=3,ffn=1024``: what is not named is as in the teacher."""
    allowed = ("layers", "heads", "kv_heads", "ffn")
    sizes: Dict[str, int] = {}
    for entry in text.split(","):
        name, _, value = entry.partition("=")
        if name not in allowed or not value.isdigit() or int(value) < 1:
            raise DistillError(f"--sizes: `{entry}` is not allowed, allowed are {', '.join(allowed)}, each as NAME=NUMBER")
        sizes[name] = int(value)
    shape = replace(teacher, **sizes)
    if shape.heads % shape.kv_heads:
        raise DistillError(f"--sizes: {shape.heads} heads are not a multiple of {shape.kv_heads} key/value heads")
    return shape


def parse_layers(text: str, teacher: Shape) -> List[int]:
    """``0,1,2,27,28,29``: layers of the teacher."""
    layers = [int(entry) if entry.isdigit() else -1 for entry in text.split(",")]
    if not layers or min(layers) < 0 or max(layers) >= teacher.layers:
        raise DistillError(f"--layers: `{text}` is not allowed, allowed are numbers from 0 to {teacher.layers - 1}")
    return layers


def layer_tensors(layer: int, shape: Shape) -> Dict[str, List[str]]:
    """For each of a layer's weights here, the tensors that are stacked in it."""
    name = f"model.layers.{layer}."
    qkv = [f"{name}self_attn.{part}_proj" for part in "qkv"]
    names = {
        "attention_norm": [f"{name}input_layernorm.weight"],
        "ffn_norm": [f"{name}post_attention_layernorm.weight"],
        "qkv": [f"{part}.weight" for part in qkv],
        "out": [f"{name}self_attn.o_proj.weight"],
        "gate_up": [f"{name}mlp.gate_proj.weight", f"{name}mlp.up_proj.weight"],
        "down": [f"{name}mlp.down_proj.weight"],
    }
    if shape.qkv_bias:
        names["qkv_bias"] = [f"{part}.bias" for part in qkv]
    if shape.qk_norm:
        names["q_norm"] = [f"{name}self_attn.q_norm.weight"]
        names["k_norm"] = [f"{name}self_attn.k_norm.weight"]
    return names


@torch.no_grad()
def copy_layers(student: Student, model: Model, layers: Sequence[int]) -> None:
    """Copies layers of a model and its final norm. Layers that differ in size stay as they are."""
    for layer, source in zip(student.layers, layers):
        for name, parts in layer_tensors(source, student.shape).items():
            value = np.concatenate([model.tensor(part) for part in parts])
            target = getattr(layer, name)
            if tuple(target.shape) != value.shape:
                raise DistillError(
                    f"`{model.path}`: layer {source} has `{name}` of shape {value.shape}, the student {tuple(target.shape)}"
                )
            target.copy_(torch.from_numpy(value))
    student.norm.copy_(torch.from_numpy(model.tensor(NORM)))


@torch.no_grad()
def copy_written(student: Student, model: Model) -> None:
    """Copies the weights of the student's own file, quantised as they are."""
    copy_layers(student, model, range(student.shape.layers))
    if model.has(HEAD):
        student.head.copy_(torch.from_numpy(model.tensor(HEAD)))


def build(teacher: Model, shape: Shape, token_ids: np.ndarray, length: int, train_head: bool, seed: int) -> Student:
    """A student with new layers."""
    torch.manual_seed(seed)
    if length > shape.context:
        raise DistillError(f"length is {length}, the teacher has a context of {shape.context} tokens")
    embedding = teacher.tensor(EMBEDDING)
    head = teacher.head()[token_ids]
    return Student(shape, embedding, head, length, train_head)


def tensors(student: Student) -> Dict[str, np.ndarray]:
    """The student's weights by Hugging Face's names, f32; without embedding and head."""
    shape = student.shape
    result: Dict[str, np.ndarray] = {NORM: student.norm.detach().float().cpu().numpy()}
    heads = {"q": shape.heads * shape.head_dim, "kv": shape.kv_heads * shape.head_dim}
    splits: Dict[str, Optional[List[int]]] = {
        "qkv": [heads["q"], heads["kv"], heads["kv"]],
        "qkv_bias": [heads["q"], heads["kv"], heads["kv"]],
        "gate_up": [shape.ffn, shape.ffn],
    }
    for number, layer in enumerate(student.layers):
        for name, parts in layer_tensors(number, shape).items():
            value = getattr(layer, name).detach().float().cpu().numpy()
            sizes = splits.get(name) or [len(value)]
            result.update(zip(parts, np.split(value, np.cumsum(sizes)[:-1])))
    return result
