"""What a Qwen hybrid with experts is: its claim and its config."""

from __future__ import annotations

from attrs import frozen

from ninfer_checkpoints.claims import claim_names
from ninfer_core.api import Claim, ModelDescription
from ninfer_qwen_family.config import MoeConfig, Names

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")


@frozen(kw_only=True)
class QwenMoeConfig(MoeConfig):
    """Of Qwen3.5 and Qwen3.6."""

    names = Names("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen3_5MoeMTP")


def claim(model: ModelDescription) -> Claim | None:
    """Exactly the architectures with experts, with a vision tower or without."""
    return claim_names(model, ARCHITECTURES, MODEL_TYPES)
