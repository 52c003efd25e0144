"""Whether a model is a pack's, by the names that its origin gives it; imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from ninfer_core.api import Claim, ModelDescription


def claim_names(
    model: ModelDescription, architectures: Collection[str], model_types: Collection[str]
) -> Claim | None:
    """100 for one of the architectures, 50 if only the type of model is one of these."""
    if model.origin == "gguf":
        return None
    if found := [name for name in model.architectures if name in architectures]:
        return Claim(100, f"architecture {found[0]}")
    if (kind := model.config.get("model_type")) in model_types:
        return Claim(50, f"model type {kind}")
    return None
