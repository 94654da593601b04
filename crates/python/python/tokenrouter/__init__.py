"""Token-level LLM routing: a small and a large model decode one request together.

>>> from tokenrouter import TokenRoutingEngine
>>> with TokenRoutingEngine("config/rstitch/demo.yaml") as engine:          # doctest: +SKIP
...     engine.generate(prompt="What is 7 * 8?", sampling_params={"max_new_tokens": 64})["text"]
"""

from ._native import __version__
from .engine import TokenRoutingEngine
from .errors import (
    ConfigError,
    EngineClosedError,
    GenerationError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    ThroughputModelError,
    TokenRouterError,
)
from .routing import FINISH, RETRY, STAY, BatchView, Needs, RoutingPolicy, SentRow
from .throughput import optimize, predict, simulate

__all__ = [
    "FINISH",
    "RETRY",
    "STAY",
    "BatchView",
    "ConfigError",
    "EngineClosedError",
    "GenerationError",
    "InvalidRequestError",
    "ModelError",
    "Needs",
    "OverloadedError",
    "RoutingPolicy",
    "SentRow",
    "ThroughputModelError",
    "TokenRouterError",
    "TokenRoutingEngine",
    "__version__",
    "optimize",
    "predict",
    "simulate",
]
