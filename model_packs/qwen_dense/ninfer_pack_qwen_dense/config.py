"""What a dense Qwen hybrid is: its claim and its config."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from ninfer_checkpoints.claims import claim_names
from ninfer_core.api import Claim, ModelDescription
from ninfer_qwen_family.config import Names, QwenConfig

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
MODEL_TYPES = ("qwen3_5", "qwen3_5_text")


@frozen(kw_only=True)
class DenseConfig(QwenConfig):
    """:ivar intermediate_size: inner width of the MLP."""

    names = Names("Qwen3_5ForCausalLM", "qwen3_5_text", "Qwen3_5MTP")
    intermediate_size: int = field(validator=ge(1))


def claim(model: ModelDescription) -> Claim | None:
    """Exactly the dense architectures, with a vision tower or without."""
    return claim_names(model, ARCHITECTURES, MODEL_TYPES)
