"""JSON as the standard has it."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse_json(text: str) -> Any:
    """Raises `ValueError` for what is no JSON, also NaN, infinities and too deep nesting."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value
