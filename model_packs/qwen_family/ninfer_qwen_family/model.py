"""The mathematics of a Qwen hybrid: Gated DeltaNet and gated attention on one residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import (
    Embedding,
    GatedAttention,
    GatedDeltaNet,
    OutputHead,
    PredictorInput,
    PredictorOutput,
    RMSNorm,
    Rope,
    mrope_axes,
    rope_frequencies,
    rope_tables,
    yarn_frequencies,
    yarn_scale,
)
from ninfer_qwen_family.config import QwenConfig

Mixer = Callable[[Tensor, StepBatch, Tensor], None]
"""Called with the normed input, the batch and the stream that it adds to."""
FeedForward = Callable[[Tensor], None]
"""Called with the stream, which it reads through its norm and adds to."""
BuildFeedForward = Callable[[Any, BuildContext, str, RMSNorm], FeedForward]
"""``(config, context, name of the layer, norm) -> feed-forward block``."""


class QwenModel:
    """Token ids to logits. The residual stream ``[T, H]`` is one buffer that layers add to.

    :ivar predictor: the next-token predictor, if the config has it.
    """

    def __init__(
        self, config: QwenConfig, context: BuildContext, feed_forward: BuildFeedForward
    ) -> None:
        build = QwenBuilder(config, context, feed_forward)
        self._embedding = Embedding(context, "text/token_embedding", out="stream")
        self._layers = [
            build.layer(f"text/layers/{index}", build.mixer(index))
            for index in range(config.num_hidden_layers)
        ]
        self._norm = build.norm("text/final_norm", out="final_hidden")
        self._head = OutputHead(context, "text/output_head")
        self._hidden = context.buffer("final_hidden", config.hidden_size)
        self.predictor = (
            QwenPredictor(build, self._embedding, self._head) if config.mtp else None
        )

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        stream = self._embedding(batch.token_ids[: batch.num_tokens])
        for layer in self._layers:
            layer(stream, batch)
        return self._head(self._norm(stream), batch)

    def hidden(self, num_tokens: int) -> Tensor:
        """Final-normed hidden states ``[num_tokens, H]`` of the last step."""
        return self._hidden(num_tokens)


class QwenLayer:
    """A mixer and a feed-forward block; each reads the stream through a norm and adds to it."""

    def __init__(self, mixer_norm: RMSNorm, mixer: Mixer, feed_forward: FeedForward) -> None:
        self._mixer_norm, self._mixer, self._feed_forward = mixer_norm, mixer, feed_forward

    def __call__(self, stream: Tensor, batch: StepBatch) -> None:
        self._mixer(self._mixer_norm(stream), batch, stream)
        self._feed_forward(stream)


class QwenPredictor:
    """The MTP module: a token and the hidden state before it, through one layer of attention.

    The halves of its input are normed each by itself, the embedding's first.
    """

    def __init__(self, build: QwenBuilder, embedding: Embedding, head: OutputHead) -> None:
        config, context = build.config, build.context
        head, self.token_ids = build.draft_head(head)
        self._embedding, width = embedding, config.hidden_size
        self._input = PredictorInput(
            context, width=width, eps=config.rms_norm_eps, out="stream", unit_offset=True)
        self._layer = build.layer("mtp/layers/0", build.attention("mtp/layers/0", "mtp_kv", 0))
        norm = build.norm("mtp/final_norm", out="mtp_hidden")
        self._output = PredictorOutput(context, norm, head, width=width)

    def forward(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See `NextTokenPredictor.forward`."""
        stream = self._input(self._embedding(batch.token_ids[: batch.num_tokens]), hidden)
        self._layer(stream, batch)
        return self._output(stream, batch)


C = TypeVar("C", bound=QwenConfig)


class Builder(Generic[C]):
    """Makes the blocks of a model, each with the sizes of its config.

    :cvar adds: whether they add to the stream, or else write their result.
    """

    adds = True

    def __init__(self, config: C, context: BuildContext) -> None:
        self.config, self.context = config, context
        frequencies, scale = rope_frequencies(config.rotary_dim, config.rope_theta), 1.0
        if config.rope_type == "yarn":
            frequencies = yarn_frequencies(
                config.rotary_dim, config.rope_theta, factor=config.factor,
                original=config.original_max_position_embeddings, beta_fast=config.beta_fast,
                beta_slow=config.beta_slow,
            )
            scale = config.attention_factor or yarn_scale(config.factor)
        self.rope: Rope = rope_tables(
            frequencies, context.max_context, context.device,
            axes=mrope_axes(config.mrope_section), scale=scale,
        )

    def attention(self, name: str, state: str, layer: int) -> Mixer:
        """The attention of the layer ``name``, over one layer of a state."""
        raise NotImplementedError

    def norm(self, name: str, *, out: str) -> RMSNorm:
        eps = self.config.rms_norm_eps
        return RMSNorm(self.context, name, eps=eps, out=out, unit_offset=True)

    def mixer(self, layer: int) -> Mixer:
        """Attention or Gated DeltaNet of a layer of the text."""
        config, name = self.config, f"text/layers/{layer}"
        ordinals = config.ordinals(config.layer_types[layer])
        if config.layer_types[layer] == "full_attention":
            return self.attention(name, "kv", ordinals[layer])
        return GatedDeltaNet(
            self.context, f"{name}/gdn", layer=ordinals[layer],
            num_key_heads=config.linear_num_key_heads,
            num_value_heads=config.linear_num_value_heads, key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim, eps=config.rms_norm_eps,
            activation=config.output_gate_type, adds=self.adds,
        )

    def draft_head(self, head: OutputHead) -> tuple[OutputHead, Tensor | None]:
        """The model's own, or one over fewer tokens; and which tokens, if not all in order."""
        token_ids = None
        if self.config.proposal_rows:
            head = OutputHead(self.context, "proposal/head")
        if self.config.proposal_rows and self.config.proposal_indexed:
            token_ids = self.context.tensor("proposal/token_ids", dtype=torch.int64)
        return head, token_ids


class QwenBuilder(Builder[QwenConfig]):
    """With a feed-forward block behind each mixer."""

    def __init__(
        self, config: QwenConfig, context: BuildContext, feed_forward: BuildFeedForward
    ) -> None:
        super().__init__(config, context)
        self._feed_forward = feed_forward

    def layer(self, name: str, mixer: Mixer) -> QwenLayer:
        norm = self.norm(f"{name}/post_attention_norm", out="normed")
        return QwenLayer(
            self.norm(f"{name}/input_norm", out="normed"), mixer,
            self._feed_forward(self.config, self.context, name, norm),
        )

    def attention(self, name: str, state: str, layer: int) -> GatedAttention:
        config = self.config
        return GatedAttention(
            self.context, f"{name}/attention", planes=self.context.state(state, layer),
            num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim, rope=self.rope, eps=config.rms_norm_eps,
        )
