"""The pack: everything the runtime asks of the dense hybrids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ninfer_checkpoints.parameters import Block, Parameter, gated_mlp
from ninfer_core.api import BuildContext
from ninfer_nn import RMSNorm, SwiGLU
from ninfer_pack_qwen_dense.config import DenseConfig
from ninfer_qwen_family.model import FeedForward
from ninfer_qwen_family.pack import QwenPack


class QwenDensePack(QwenPack[DenseConfig]):
    """Every layer ends with a SwiGLU MLP."""

    config_class = DenseConfig
    launches = 2

    def feed_forward(self, config: DenseConfig, block: Block) -> Iterable[Parameter]:
        return gated_mlp(block, "mlp", "mlp.", config.hidden_size, config.intermediate_size)

    def build_feed_forward(
        self, config: DenseConfig, context: BuildContext, name: str, norm: RMSNorm
    ) -> FeedForward:
        gate, up, down = (f"{name}/mlp/{part}" for part in ("gate", "up", "down"))
        mlp = SwiGLU(context, gate=gate, up=up, down=down)
        return lambda stream: mlp(norm(stream), stream)

    def tiny_sizes(self) -> Mapping[str, Any]:
        return {"intermediate_size": 80}
