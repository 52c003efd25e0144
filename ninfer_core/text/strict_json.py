"""JSON as the standard has it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

MAX_DEPTH = 100
"""Levels of arrays and objects: far below what the interpreter's stack takes, wherever a value is
copied, rendered or written."""


def parse_json(text: str) -> Any:
    """Raises `ValueError` for what is no JSON, also NaN, infinities and deeper than `MAX_DEPTH`."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raises `ValueError` for a value that is nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
    if any(isinstance(each, list | dict) for each in level):
        raise ValueError("nested too deeply")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value
