"""Keys of configs that change the mathematics, with the values that are computed; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_core.api import ArtifactError

Variants = Mapping[str, tuple[Any, ...]]
"""The first value is that of a key which is missing or null."""


def require_variants(
    model: str, keys: Mapping[str, Any], variants: Variants, place: str = ""
) -> None:
    """Raise `ArtifactError`, which names the key, at a value that is not computed.

    :param model: what is configured, and ``place`` where the keys are in its config, for the error.
    """
    for key, computed in variants.items():
        found = keys.get(key)
        if found is not None and found not in computed:
            why = f"{place}{key} is {found!r}; computed are: {', '.join(map(repr, computed))}"
            raise ArtifactError(f"this variant of {model} is not supported", why=why)
