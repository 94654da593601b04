"""JSON of plain values, NumPy's included."""

from __future__ import annotations

import json
from typing import Any


def _plain(value: Any) -> Any:
    """NumPy arrays and scalars as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither a number, a text, a list nor an array")


def dumps(value: Any) -> str:
    return json.dumps(value, default=_plain)
