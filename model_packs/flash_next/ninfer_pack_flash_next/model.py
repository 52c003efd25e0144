"""The mathematics of a Flash-Next: Qwen's mixers on a residual of several streams."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import (
    Embedding,
    GatedStreams,
    IndexedAttention,
    IndexSizes,
    Linear,
    NgramEmbedding,
    NgramHash,
    OutputHead,
    SparseMoE,
)
from ninfer_pack_flash_next.config import FlashNextConfig
from ninfer_pack_flash_next.hashing import moduli, multipliers, offsets
from ninfer_qwen_family.model import Builder, Mixer


class FlashNextModel:
    """Token ids to logits. The residual ``[T, S H]`` begins as the embedding in every stream.

    :ivar predictor: the next-token predictor, if the config has it.
    """

    def __init__(self, config: FlashNextConfig, context: BuildContext) -> None:
        build = FlashNextBuilder(config, context)
        self._embedding = Embedding(context, "text/token_embedding", out="embedded")
        self._streams = context.buffer("streams", config.streams_width)
        self._count = config.hc_count
        self._layers = [
            build.layer(f"text/layers/{index}", build.mixer(index), build.ngrams(index))
            for index in range(config.num_hidden_layers)
        ]
        self._final = build.streams("text/final_streams", writes=False)
        self._head = OutputHead(context, "text/output_head")
        self.predictor = (
            FlashNextPredictor(build, self._embedding, self._head) if config.mtp else None
        )

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        embedded = self._embedding(batch.token_ids[: batch.num_tokens])
        streams = self._streams(batch.num_tokens)
        spread(embedded, streams, self._count)
        for layer in self._layers:
            layer(streams, batch)
        return self._head(self._final.read(streams), batch)

    def hidden(self, num_tokens: int) -> Tensor:
        """The streams ``[num_tokens, S H]`` that the last step ended with, not yet read."""
        return self._streams(num_tokens)


class FlashNextLayer:
    """A mixer and a mixture of experts; each reads the streams and is added to them by gates.
    Before them n-grams may be added."""

    def __init__(
        self, mixer_streams: GatedStreams, mixer: Mixer, ffn_streams: GatedStreams,
        ffn: SparseMoE, ngrams: NgramEmbedding | None, context: BuildContext, hidden_size: int,
    ) -> None:
        self._mixer_streams, self._mixer = mixer_streams, mixer
        self._ffn_streams, self._ffn, self._ngrams = ffn_streams, ffn, ngrams
        self._result = context.buffer("block_output", hidden_size)

    def __call__(self, streams: Tensor, batch: StepBatch) -> None:
        if self._ngrams:
            self._ngrams(streams, batch)
        result = self._result(streams.shape[0])
        self._mixer(self._mixer_streams.read(streams), batch, result)
        self._mixer_streams.write(streams, result)
        self._ffn(self._ffn_streams.read(streams), result)
        self._ffn_streams.write(streams, result)


class FlashNextPredictor:
    """The MTP module: the streams after a token, normed as one row and projected each by itself,
    and in each of them the token that follows; through one layer of attention."""

    def __init__(self, build: FlashNextBuilder, embedding: Embedding, head: OutputHead) -> None:
        config, context, name = build.config, build.context, "mtp/layers/0"
        self._head, self.token_ids = build.draft_head(head)
        self._embedding, self._count = embedding, config.hc_count
        self._embedding_norm = build.norm("mtp/embedding_norm", out="normed")
        self._project_embedding = Linear(context, "mtp/embedding_projection", out="mtp_embedded")
        self._hidden_norm = build.norm("mtp/hidden_norm", out="mtp_normed")
        self._project = Linear(context, "mtp/hidden_projection")
        self._streams = context.buffer("mtp_streams", config.streams_width)
        self._layer = build.layer(name, build.attention(name, "mtp_kv", 0), None)
        self._final = build.streams("mtp/final_streams", writes=False)
        self._rows = context.buffer("mtp_hidden", config.streams_width)

    def forward(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See `NextTokenPredictor.forward`; hidden states are streams ``[.., S H]``."""
        embedded = self._embedding(batch.token_ids[: batch.num_tokens])
        streams = self._streams(batch.num_tokens)
        spread(self._project_embedding(self._embedding_norm(embedded)), streams, self._count)
        normed = self._hidden_norm(hidden)
        pairs = zip(streams.chunk(self._count, 1), normed.chunk(self._count, 1), strict=True)
        for stream, part in pairs:
            self._project.add_to(stream, part)
        self._layer(streams, batch)
        wanted = batch.logit_rows[: batch.num_logits]
        rows = torch.index_select(streams, 0, wanted, out=self._rows(batch.num_logits))
        return self._head.of_rows(self._final.read(rows)), rows


def spread(x: Tensor, streams: Tensor, count: int) -> None:
    """Put ``x`` ``[T, H]`` in every one of the streams ``[T, S H]``."""
    streams.unflatten(1, (count, -1)).copy_(x.unsqueeze(1))


class FlashNextBuilder(Builder[FlashNextConfig]):
    """Makes the blocks of a model, each with the sizes of its config."""

    adds = False

    def layer(
        self, name: str, mixer: Mixer, ngrams: NgramEmbedding | None
    ) -> FlashNextLayer:
        config = self.config
        ffn = SparseMoE(
            self.context, f"{name}/moe", num_experts=config.num_experts,
            top_k=config.num_experts_per_tok, adds=False,
        )
        return FlashNextLayer(
            self.streams(f"{name}/mixer_streams"), mixer, self.streams(f"{name}/ffn_streams"),
            ffn, ngrams, self.context, config.hidden_size,
        )

    def streams(self, name: str, *, writes: bool = True) -> GatedStreams:
        config = self.config
        return GatedStreams(
            self.context, name, num_streams=config.hc_count, hidden_size=config.hidden_size,
            rank=config.hc_lowrank, eps=config.rms_norm_eps, writes=writes,
        )

    def ngrams(self, layer: int) -> NgramEmbedding | None:
        """The n-gram embedding of a layer, if it has one."""
        config, ordinal = self.config, self.config.ngram_ordinals.get(layer)
        if ordinal is None:
            return None
        hash = NgramHash(
            config.ngram_size, config.heads_per_ngram, config.eos_token_id,
            multipliers(config, ordinal), moduli(config, ordinal), offsets(config, ordinal),
        )
        return NgramEmbedding(
            self.context, f"text/layers/{layer}/ngram", layer=ordinal, hash=hash,
            num_streams=config.hc_count, hidden_size=config.hidden_size, eps=config.rms_norm_eps,
        )

    def attention(self, name: str, state: str, layer: int) -> IndexedAttention:
        config = self.config
        return IndexedAttention(
            self.context, f"{name}/attention", state=state, layer=layer,
            num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim, index=index_sizes(config), rope=self.rope,
            eps=config.rms_norm_eps, adds=False,
        )


def index_sizes(config: FlashNextConfig) -> IndexSizes:
    """Of the indexers; the budget in blocks."""
    block = config.indexer_compress_ratio
    return IndexSizes(
        config.indexer_n_heads, config.indexer_head_dim, block, config.indexer_budget // block
    )
