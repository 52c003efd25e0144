"""The mathematics of a toy: recurrence and attention mixers, each with a SwiGLU MLP."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.nn import (
    Attention,
    Embedding,
    Linear,
    OutputHead,
    RMSNorm,
    SwiGLU,
    rope_frequencies,
    rope_tables,
)
from ninfer_core.state.step import StepBatch
from ninfer_pack_toy.config import ToyConfig
from ninfer_pack_toy.recurrence import recur


class Recurrence:
    """``output(recur(gate x, value x))``, added to the residual stream."""

    recur = staticmethod(recur)

    def __init__(self, context: BuildContext, name: str, *, layer: int, state_size: int) -> None:
        self._raw = Linear(context, f"{name}/gate", f"{name}/value", out="recurrence_raw")
        self._planes = context.state("memory", layer)
        self._states = context.buffer("recurrence_states", state_size)
        self._output = Linear(context, f"{name}/output")

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        states = self._states(x.shape[0])
        self.recur(self._raw(x), batch, self._planes, states)
        self._output.add_to(stream, states)


class ToyModel:
    """Token ids to logits; layers add to one residual stream."""

    recurrence = Recurrence
    head = "text/output_head"

    def __init__(self, config: ToyConfig, context: BuildContext) -> None:
        self._config, self._context = config, context
        frequencies = rope_frequencies(config.head_dim, config.rope_theta)
        self._rope = rope_tables(frequencies, context.max_context, context.device)
        self._embedding = Embedding(context, "text/token_embedding", out="stream")
        self._layers = [self._layer(index) for index in range(len(config.layers))]
        self._norm = self._make_norm("text/final_norm")
        self._head = OutputHead(context, self.head)

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        stream = self._embedding(batch.token_ids[: batch.num_tokens])
        for mixer_norm, mixer, mlp_norm, mlp in self._layers:
            mixer(mixer_norm(stream), batch, stream)
            mlp(mlp_norm(stream), stream)
        return self._head(self._norm(stream), batch)

    def _layer(self, index: int) -> tuple[RMSNorm, Recurrence | Attention, RMSNorm, SwiGLU]:
        name = f"text/layers/{index}"
        mlp = {part: f"{name}/mlp/{part}" for part in ("gate", "up", "down")}
        return (
            self._make_norm(f"{name}/input_norm"), self._mixer(name, index),
            self._make_norm(f"{name}/post_mixer_norm"), SwiGLU(self._context, **mlp),
        )

    def _make_norm(self, name: str) -> RMSNorm:
        return RMSNorm(self._context, name, eps=self._config.rms_norm_eps, out="normed")

    def _mixer(self, name: str, index: int) -> Recurrence | Attention:
        config = self._config
        ordinal = config.layers[:index].count(config.layers[index])  # among its kind
        if config.layers[index] == "r":
            return self.recurrence(
                self._context, f"{name}/recurrence", layer=ordinal, state_size=config.state_size
            )
        parts = {p: f"{name}/attention/{p}" for p in ("query", "key", "value", "output")}
        return Attention(
            self._context, **parts, planes=self._context.state("kv", ordinal), rope=self._rope,
            num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim,
        )
