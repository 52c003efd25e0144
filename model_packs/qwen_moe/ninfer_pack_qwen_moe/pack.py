"""The pack: everything the runtime asks of the hybrids with experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ninfer_core.api import BuildContext
from ninfer_core.nn import SparseMoE
from ninfer_pack_qwen_moe.config import MoeConfig
from ninfer_qwen_family.pack import QwenPack
from ninfer_qwen_family.parameters import Block, Origin, Parameter, gated_mlp


class QwenMoePack(QwenPack[MoeConfig]):
    """Every layer ends with routed experts and a shared one."""

    config_class = MoeConfig
    launches = 6

    def feed_forward(self, config: MoeConfig, block: Block) -> Iterator[Parameter]:
        hidden = config.hidden_size
        for name, outputs, tensor in (
            ("router", config.num_experts, "gate"), ("shared_score", 1, "shared_expert_gate"),
        ):
            yield block.projection(
                f"moe/{name}", (outputs, hidden), Origin(f"mlp.{tensor}.weight"),
                input="ffn_input", parent="moe/scores",
            )
        yield from _experts(config, block)
        yield from gated_mlp(
            block, "moe/shared", "mlp.shared_expert.", hidden,
            config.shared_expert_intermediate_size,
        )

    def operations(self, config: MoeConfig) -> Mapping[str, int]:
        """Also how many of the routed experts a token reads."""
        return {
            **super().operations(config), "num_experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
        }

    def build_feed_forward(
        self, config: MoeConfig, context: BuildContext, name: str
    ) -> SparseMoE:
        return SparseMoE(
            context, f"{name}/moe", num_experts=config.num_experts,
            top_k=config.num_experts_per_tok,
        )

    def tiny_sizes(self) -> Mapping[str, Any]:
        # All experts but the last: a choice that rounding turns over is a jump in the logits.
        return {"num_experts": 5, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 48}


def _experts(config: MoeConfig, block: Block) -> Iterator[Parameter]:
    """Banks of all experts: gate and up, each gate above its up, and down."""
    inner, hidden = config.moe_intermediate_size, config.hidden_size
    for expert in range(config.num_experts):
        for name, begin in (("gate", 0), ("up", inner)):
            bank = Origin("mlp.experts.gate_up_proj", (expert, slice(begin, begin + inner)))
            yield _expert(block, expert, name, (inner, hidden), bank, "ffn_input", "gate_up")
    for expert in range(config.num_experts):
        bank, product = Origin("mlp.experts.down_proj", (expert,)), f"experts/{expert}/product"
        yield _expert(block, expert, "down", (hidden, inner), bank, f"moe/{product}", "down")


def _expert(
    block: Block, expert: int, name: str, shape: tuple[int, int], bank: Origin, input: str,
    parent: str,
) -> Parameter:
    """Checkpoints have the bank, or each matrix by itself under either order of names."""
    alone = [Origin(f"mlp.experts.{each}.weight")
             for each in (f"{name}_proj.{expert}", f"{expert}.{name}_proj")]
    return block.projection(
        f"moe/experts/{expert}/{name}", shape, bank, *alone, input=input,
        parent=f"moe/experts/{parent}", bank=True,
    )
