"""Settings of RoPE out of all places that configs have them in; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError

_PLACES = ("rope_parameters", "rope_scaling")
_ORIGINAL = "original_max_position_embeddings"
_ONLY_NESTED = ("rope_type", "factor", "attention_factor", "beta_fast", "beta_slow")
"""Keys that transformers does not read beside those of the model."""


def rope_settings(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What ``rope_parameters`` or, in older configs, ``rope_scaling`` say, nulls included.

    :param keys: of the text model.
    :raises ArtifactError: naming the keys, where two places contradict each other, or where
        another thing is meant than is computed.
    """
    places = {name: _nested(name, keys[name]) for name in _PLACES if keys.get(name)}
    _require_the_same(places)
    settings = {"rope_type": "default"}
    for found in places.values():
        settings |= found
    _require_nested(keys, settings)
    return settings


def _nested(place: str, given: Any) -> dict[str, Any]:
    """Settings of one place, always with their ``rope_type``."""
    found = dict(given) if isinstance(given, Mapping) else {"type": given}
    if layers := [key for key, value in found.items() if isinstance(value, Mapping)]:
        why = f"{place} differs by layer: {', '.join(map(str, layers))}"
        raise _refusal(why, f"give {place} once, for all layers")
    if found.get("truncate", True) is None:
        why = f"{place}.truncate is null, which is no truncation; computed is: True"
        raise _refusal(why, "leave truncate out if the model was trained with truncation")
    kind = found.pop("type", None) or found.get("rope_type", "default")
    if found.setdefault("rope_type", kind) != kind:
        why = f"{place}.rope_type is {found['rope_type']!r}, and {place}.type is {kind!r}"
        raise _refusal(why, "leave out type")
    return found


def _require_the_same(places: Mapping[str, Mapping[str, Any]]) -> None:
    """Transformers reads ``rope_scaling`` alone where there are both."""
    parameters, scaling = (places.get(name, {}) for name in _PLACES)
    for key in sorted(parameters.keys() & scaling.keys()):
        if parameters[key] != scaling[key]:
            why = (f"rope_parameters.{key} is {parameters[key]!r}, and "
                   f"rope_scaling.{key} is {scaling[key]!r}")
            raise _refusal(why, "leave out rope_scaling, or make them the same")


def _require_nested(keys: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """What is beside the keys of the model says nothing that is not in the settings."""
    wanted = {key: settings.get(key) for key in _ONLY_NESTED}
    wanted[_ORIGINAL] = settings.get(_ORIGINAL, keys.get(_ORIGINAL))
    for key, value in wanted.items():
        if (found := keys.get(key)) is not None and found != value:
            why = f"{key} is {found!r} beside rope_parameters, and {value!r} in there"
            raise _refusal(why, f"give {key} in rope_parameters alone")


def _refusal(why: str, fix: str) -> ArtifactError:
    return ArtifactError("these settings of RoPE are not supported", why=why, fix=fix)
