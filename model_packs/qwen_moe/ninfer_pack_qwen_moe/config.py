"""What a Qwen hybrid with experts is: its claim and its config."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from ninfer_core.api import Claim, ModelDescription
from ninfer_qwen_family.config import Names, QwenConfig, claim_names

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")


@frozen(kw_only=True)
class MoeConfig(QwenConfig):
    """:ivar num_experts_per_tok: routed experts of a token, besides the shared one."""

    names = Names("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen3_5MoeMTP")
    num_experts: int = field(validator=ge(1))
    num_experts_per_tok: int = field(validator=ge(1))
    moe_intermediate_size: int = field(validator=ge(1))
    shared_expert_intermediate_size: int = field(validator=ge(1))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"{self.num_experts_per_tok} of {self.num_experts} experts a token")


def claim(model: ModelDescription) -> Claim | None:
    """Exactly the architectures with experts, with a vision tower or without."""
    return claim_names(model, ARCHITECTURES, MODEL_TYPES)
