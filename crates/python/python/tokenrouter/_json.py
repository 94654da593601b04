"""JSON of plain values, including NumPy arrays and scalars."""

from __future__ import annotations

import json
from typing import Any


def _plain(value: Any) -> Any:
    """Converts NumPy arrays and scalars to lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither a number, a text, a list nor an array")


def dumps(value: Any) -> str:
    return json.dumps(value, default=_plain)
