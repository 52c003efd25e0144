"""Published artifacts as data: what a conversion would write, without a checkpoint.

A pack has a TOML file for each: ``text`` is the config of the text component, ``proposal`` the
draft head if there is one, ``recipe`` the name of one of the pack's recipes, ``sampling`` what
makers recommend. ``like`` names a card that has what is not given.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Protocol

from attrs import frozen
from torch import Tensor

from ninfer_checkpoints.parameters import Parameter
from ninfer_core import api


class CheckpointPack(Protocol):
    """What of a pack an outline asks for."""

    def configure(self, model: api.ModelDescription) -> Any:
        """A config with ``components()``, those of an artifact."""
        ...

    def parameters(self, config: Any) -> tuple[api.ParameterSpec, ...]: ...

    def checkpoint_parameters(self, config: Any) -> Iterable[Parameter]:
        """Those of the parameters that checkpoints have; conversion makes the others."""
        ...


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
    values = _card(package, name)
    recipe = _toml(f"{package.rpartition('.')[0]}.recipes", values["recipe"])
    text = values["text"]
    components = {"text": text, "mtp": {}}
    if "proposal" in values:
        components["proposal"] = values["proposal"]
    return Card(
        api.ModelDescription("artifact", tuple(text["architectures"]), text, components),
        tuple(api.StorageChoice(**choice) for choice in recipe["store"]),
        {mode: api.SamplingParams(**each) for mode, each in values["sampling"].items()},
    )


def outline(pack: CheckpointPack, package: str, name: str) -> api.ImportPlan:
    """An `ImportPlan` that says everything of the artifact but its values."""
    card = read_card(package, name)
    config = pack.configure(card.description)
    components, recipe = config.components(), card.recipe
    if proposal := card.description.components.get("proposal"):
        components["text"]["proposal"] = dict(proposal)
        recipe = (api.StorageChoice("proposal/head", "q4_g64_fp16"), *recipe)
    return api.ImportPlan(
        components, tuple(_outlined(pack, config)), resources={}, ignored={}, recipe=recipe
    )


def _outlined(pack: CheckpointPack, config: Any) -> Iterator[api.ImportedParameter]:
    """Each as a checkpoint in bf16 would give it."""
    stored = {each.spec.name: each for each in pack.checkpoint_parameters(config)}
    for parameter in stored.values():
        format = "fp32" if parameter.fp32 else "bf16"
        yield api.ImportedParameter(
            parameter.spec, (), _no_values, format=format, parent=parameter.parent
        )
    for spec in pack.parameters(config):
        if spec.name not in stored:
            format = "int32" if spec.kind == "direct" else "bf16"
            yield api.ImportedParameter(spec, (), _no_values, format=format)


def _no_values() -> Tensor:
    raise api.UnsupportedError("a card has no weights", fix="convert or fetch the model itself")


def _card(package: str, name: str) -> dict[str, Any]:
    values = _toml(package, name)
    return {**_card(package, values["like"]), **values} if "like" in values else values


def _toml(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(package) / f"{name}.toml").read_text("utf-8"))
