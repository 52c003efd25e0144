"""The mathematics of a toy: recurrence and attention mixers, each with a SwiGLU MLP."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import (
    Attention,
    Embedding,
    Linear,
    OutputHead,
    RMSNorm,
    SwiGLU,
    rope_frequencies,
    rope_tables,
)
from ninfer_pack_toy.config import ToyConfig
from ninfer_pack_toy.predictor import ToyPredictor
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


class Layer:
    """A mixer and an MLP that add to the residual stream, each behind a norm."""

    def __init__(
        self, mixer_norm: RMSNorm, mixer: Recurrence | Attention, mlp_norm: RMSNorm, mlp: SwiGLU
    ) -> None:
        self._mixer_norm, self._mixer, self._mlp_norm, self._mlp = mixer_norm, mixer, mlp_norm, mlp

    def __call__(self, stream: Tensor, batch: StepBatch) -> None:
        self._mixer(self._mixer_norm(stream), batch, stream)
        self._mlp(self._mlp_norm(stream), stream)


class ToyModel:
    """Token ids to logits; layers add to one residual stream.

    :ivar predictor: the next-token predictor, if the config has one.
    """

    recurrence = Recurrence
    predict = ToyPredictor
    head = "text/output_head"

    def __init__(self, config: ToyConfig, context: BuildContext) -> None:
        self._config, self._context = config, context
        frequencies = rope_frequencies(config.head_dim, config.rope_theta)
        self._rope = rope_tables(frequencies, context.max_context, context.device)
        self._embedding = Embedding(context, "text/token_embedding", out="stream")
        self._layers = [
            self._layer(name := f"text/layers/{index}", self._mixer(name, index))
            for index in range(len(config.layers))
        ]
        self._norm = self._make_norm("text/final_norm", "final_hidden")
        self.hidden = context.buffer("final_hidden", config.hidden_size)
        self._head = OutputHead(context, self.head)
        self.predictor = self._predictor() if config.predictor else None

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        stream = self._embedding(batch.token_ids[: batch.num_tokens])
        for layer in self._layers:
            layer(stream, batch)
        return self._head(self._norm(stream), batch)

    def _predictor(self) -> ToyPredictor:
        layer = self._layer("mtp/layer", self._attention("mtp/layer", "mtp_kv", 0))
        return self.predict(self._context, self._make_norm, layer, self._embedding, self._head)

    def _layer(self, name: str, mixer: Recurrence | Attention) -> Layer:
        mlp = {part: f"{name}/mlp/{part}" for part in ("gate", "up", "down")}
        return Layer(
            self._make_norm(f"{name}/input_norm"), mixer,
            self._make_norm(f"{name}/post_mixer_norm"), SwiGLU(self._context, **mlp),
        )

    def _make_norm(self, name: str, out: str = "normed") -> RMSNorm:
        return RMSNorm(self._context, name, eps=self._config.rms_norm_eps, out=out)

    def _mixer(self, name: str, index: int) -> Recurrence | Attention:
        config = self._config
        ordinal = config.layers[:index].count(config.layers[index])  # among its kind
        if config.layers[index] == "r":
            return self.recurrence(
                self._context, f"{name}/recurrence", layer=ordinal, state_size=config.state_size
            )
        return self._attention(name, "kv", ordinal)

    def _attention(self, name: str, state: str, layer: int) -> Attention:
        config = self._config
        parts = {p: f"{name}/attention/{p}" for p in ("query", "key", "value", "output")}
        return Attention(
            self._context, **parts, planes=self._context.state(state, layer), rope=self._rope,
            num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim,
        )
