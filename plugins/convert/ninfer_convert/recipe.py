"""Recipes: which parameters are stored in which format, as data.

A recipe is a TOML file; the first entry whose pattern matches a parameter's name decides::

    [[store]]
    pattern = "text/layers/*/mlp/*"
    format = "q4_g64_fp16"

    [[store]]
    pattern = "*"               # no format: what the checkpoint holds
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import cattrs
from attrs import frozen

from ninfer_core.api import ConfigError, StorageChoice


@frozen
class _Recipe:
    store: tuple[StorageChoice, ...]


_converter = cattrs.Converter(forbid_extra_keys=True)


def load_recipe(name: str) -> Sequence[StorageChoice]:
    """The recipe in a file, or one that comes with the converter, by name.

    :raises ConfigError: if there is none of that name, or it is malformed.
    """
    try:
        text = Path(name).read_text("utf-8") if os.path.isfile(name) else _built_in(name)
        return _converter.structure(tomllib.loads(text), _Recipe).store
    except (OSError, ValueError) as error:  # of the file, its UTF-8 and its TOML
        raise ConfigError("malformed recipe", where=name, why=str(error)) from error
    except cattrs.BaseValidationError as error:
        why = "; ".join(cattrs.transform_error(error))
        raise ConfigError("malformed recipe", where=name, why=why) from error


def _built_in(name: str) -> str:
    folder = resources.files("ninfer_convert") / "recipes"
    known = {file.name.removesuffix(".toml"): file for file in folder.iterdir()}
    if name not in known:
        raise ConfigError(
            "no such recipe", where=name,
            why=f"it is no file, and the built-in ones are: {', '.join(sorted(known))}",
        )
    return known[name].read_text()
