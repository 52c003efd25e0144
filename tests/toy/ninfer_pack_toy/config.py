"""What a toy model is: its claim, its config and the config of the tiny one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from ninfer_core.api import Claim, ModelDescription
from ninfer_core.artifact.schema import read_config

ARCHITECTURE = "ToyHybridForCausalLM"


@frozen
class ToyConfig:
    """One recurrence layer per ``r`` and one attention layer per ``a`` in ``layers``; a
    ``predictor`` if the component ``mtp`` is in use."""

    layers: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    state_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_context: int
    predictor: bool = False


TINY: Mapping[str, Any] = {
    "layers": "rar", "vocab_size": 272, "hidden_size": 64, "intermediate_size": 128,
    "state_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5, "max_context": 4096,
}


def claim(model: ModelDescription) -> Claim | None:
    """Claims exactly the architecture ``ToyHybridForCausalLM``."""
    if ARCHITECTURE in model.architectures:
        return Claim(100, f"architecture {ARCHITECTURE}")
    return None


def configure(model: ModelDescription) -> ToyConfig:
    """The text config; raises `ArtifactError` naming a missing or odd key."""
    config = read_config(ToyConfig, model.config, "toy")
    return evolve(config, predictor="mtp" in model.components)


def tiny() -> ModelDescription:
    """The smallest model with two recurrence layers around an attention layer, and a predictor."""
    text, mtp = {"architectures": [ARCHITECTURE], **TINY}, {"architectures": ["ToyPredictor"]}
    return ModelDescription("artifact", (ARCHITECTURE,), text, {"text": text, "mtp": mtp})
