"""Published artifacts as data: what a conversion would write, without a checkpoint.

A pack has a TOML file for each: ``text`` is the config of the text component, ``proposal`` the
draft head, ``recipe`` the name of one of the pack's recipes, ``sampling`` what makers recommend.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from attrs import frozen
from torch import Tensor

from ninfer_core import api
from ninfer_qwen_family.config import QwenConfig
from ninfer_qwen_family.pack import QwenPack
from ninfer_qwen_family.parameters import checkpoint_parameters, proposal_parameters


@frozen
class Card:
    """A published artifact.

    :ivar description: of its model, all components in use.
    :ivar recipe: how it is stored.
    :ivar sampling: recommended parameters by mode of use.
    """

    description: api.ModelDescription
    recipe: tuple[api.StorageChoice, ...]
    sampling: Mapping[str, api.SamplingParams]


def read_card(package: str, name: str) -> Card:
    """The card in a package ``cards``; recipes are in its neighbour ``recipes``."""
    values = _toml(package, name)
    recipe = _toml(f"{package.rpartition('.')[0]}.recipes", values["recipe"])
    text = values["text"]
    components = {"text": text, "mtp": {}, "proposal": values["proposal"]}
    return Card(
        api.ModelDescription("artifact", tuple(text["architectures"]), text, components),
        tuple(api.StorageChoice(**choice) for choice in recipe["store"]),
        {mode: api.SamplingParams(**each) for mode, each in values["sampling"].items()},
    )


def outline(pack: QwenPack[Any], package: str, name: str) -> api.ImportPlan:
    """An `ImportPlan` that says everything of the artifact but its values."""
    card = read_card(package, name)
    config: QwenConfig = pack.configure(card.description)
    components = config.components()
    components["text"]["proposal"] = dict(card.description.components["proposal"])
    recipe = (api.StorageChoice("proposal/head", "q4_g64_fp16"), *card.recipe)
    return api.ImportPlan(
        components, tuple(_outlined(pack, config)), resources={}, ignored={}, recipe=recipe
    )


def _outlined(pack: QwenPack[Any], config: QwenConfig) -> Iterator[api.ImportedParameter]:
    for parameter in checkpoint_parameters(config, pack.feed_forward):
        format = "fp32" if parameter.fp32 else "bf16"
        yield api.ImportedParameter(
            parameter.spec, (), _no_values, format=format, parent=parameter.parent
        )
    for spec in proposal_parameters(config):
        format = "int32" if spec.kind == "direct" else "bf16"
        yield api.ImportedParameter(spec, (), _no_values, format=format)


def _no_values() -> Tensor:
    raise api.UnsupportedError("a card has no weights", fix="convert or fetch the model itself")


def _toml(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(package) / f"{name}.toml").read_text("utf-8"))
