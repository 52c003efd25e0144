"""From values of a file or a command line to checked records, with errors that say where."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import cattrs
from attrs import fields_dict

from ninfer_core.api import ConfigError

Capacity = int | Literal["auto"] | None
"""Bytes, ``auto``, or nothing said."""
T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a file; raises `ConfigError` if it has none."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("cannot read launch options", where=str(path), why=str(error)) from error


def structure(values: Mapping[str, Any], kind: type[T], where: str = "") -> T:
    """A record of attrs, and of records in it.

    :param where: of the values, for errors.
    :raises ConfigError: naming every option that is unknown, mistyped or out of range.
    """
    try:
        return _converter.structure(values, kind)
    except cattrs.BaseValidationError as error:
        lines = cattrs.transform_error(error, "", format_exception=_explain)
        raise ConfigError(
            "a launch option is wrong", where=where, why="; ".join(map(_readable, lines))
        ) from error


def _explain(error: BaseException, _: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = fields_dict(error.cl)
        return ", ".join(_unknown(name, known) for name in sorted(error.extra_fields))
    return str(error.args[0] if error.args else error)  # attrs adds more than a reader wants


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"unknown option {name!r}" + "".join(f" (did you mean {each!r}?)" for each in near)


def _readable(line: str) -> str:
    text, _, path = line.rpartition(" @ ")
    return f"{path.removeprefix('.')}: {text}" if path else text


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"must be {kind.__name__}, not {value!r}")
    return value


def _capacity(value: Any, _: type) -> Any:
    if value in (None, "auto") or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"must be a number of bytes or \"auto\", not {value!r}")


def _texts(value: Any, _: type) -> tuple[str, ...]:
    if type(value) not in (list, tuple) or not all(type(each) is str for each in value):
        raise TypeError(f"must be a list of strings, not {value!r}")
    return tuple(value)


def _seconds(value: Any, _: type) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"must be a number, not {value!r}")
    return float(value)


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook(Capacity, _capacity)
_converter.register_structure_hook(float, _seconds)
_converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _texts)
for _kind in (bool, int, str):
    _converter.register_structure_hook(_kind, _exact)
