"""The pack: everything the runtime asks of the hybrids with experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ninfer_checkpoints.parameters import Block, Parameter, sparse_moe
from ninfer_core.api import BuildContext
from ninfer_nn import RMSNorm, SparseMoE
from ninfer_pack_qwen_moe.config import QwenMoeConfig
from ninfer_qwen_family.model import FeedForward
from ninfer_qwen_family.pack import QwenPack


class QwenMoePack(QwenPack[QwenMoeConfig]):
    """Every layer ends with routed experts and a shared one."""

    config_class = QwenMoeConfig
    launches = 6

    def feed_forward(self, config: QwenMoeConfig, block: Block) -> Iterator[Parameter]:
        return sparse_moe(
            block, hidden=config.hidden_size, num_experts=config.num_experts,
            inner=config.moe_intermediate_size,
            shared_inner=config.shared_expert_intermediate_size,
        )

    def operations(self, config: QwenMoeConfig) -> Mapping[str, int]:
        """Also how many of the routed experts a token reads."""
        return {
            **super().operations(config), "num_experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
        }

    def build_feed_forward(
        self, config: QwenMoeConfig, context: BuildContext, name: str, norm: RMSNorm
    ) -> FeedForward:
        experts = SparseMoE(
            context, f"{name}/moe", num_experts=config.num_experts,
            top_k=config.num_experts_per_tok, norm=norm,
        )
        return lambda stream: experts(stream, stream)

    def tiny_sizes(self) -> Mapping[str, Any]:
        # All experts but the last: a choice that rounding turns over is a jump in the logits.
        return {"num_experts": 5, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 48}
