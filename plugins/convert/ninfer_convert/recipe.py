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

from ninfer_core.api import AmbiguityError, ConfigError, StorageChoice

BUILT_IN = "ninfer_convert.recipes"


@frozen
class _Recipe:
    store: tuple[StorageChoice, ...]


_converter = cattrs.Converter(forbid_extra_keys=True)


def load_recipe(name: str, package: str = "") -> Sequence[StorageChoice]:
    """The recipe in a file, or one that comes with the converter or a pack, by name.

    :param package: the pack's (`ModelPackSpec.recipes`); "" if it has none.
    :raises ConfigError: if there is none of that name, or it is malformed.
    :raises AmbiguityError: if both have one of that name.
    """
    try:
        text = Path(name).read_text("utf-8") if os.path.isfile(name) else _packaged(name, package)
        return _converter.structure(tomllib.loads(text), _Recipe).store
    except (OSError, ValueError, ImportError) as error:  # file, UTF-8, TOML, package
        raise ConfigError("malformed recipe", where=name, why=str(error)) from error
    except cattrs.BaseValidationError as error:
        why = "; ".join(cattrs.transform_error(error))
        raise ConfigError("malformed recipe", where=name, why=why) from error


def _packaged(name: str, package: str) -> str:
    known = [
        file for folder in (BUILT_IN, package) if folder
        for file in resources.files(folder).iterdir() if file.name.endswith(".toml")
    ]
    found = [file for file in known if file.name == f"{name}.toml"]
    if len(found) > 1:
        why = f"{BUILT_IN} and {package} have one each"
        raise AmbiguityError("two recipes have one name", where=name, why=why,
                             fix="give the file of the one that you want")
    if not found:
        names = ", ".join(sorted({file.name.removesuffix(".toml") for file in known}))
        why = f"it is no file, and those that are installed are: {names}"
        raise ConfigError("no such recipe", where=name, why=why)
    return found[0].read_text("utf-8")
