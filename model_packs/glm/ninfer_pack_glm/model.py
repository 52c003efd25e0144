"""The mathematics of GLM-5.3-Flash: mixers and MLPs that read and write mixing streams."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import (
    ChannelDeltaNet,
    Embedding,
    IndexSizes,
    LatentAttention,
    OutputHead,
    PredictorInput,
    PredictorOutput,
    RMSNorm,
    SinkhornStreams,
    SparseMoE,
    StreamMean,
    SwiGLU,
)
from ninfer_pack_glm.config import GlmConfig

Mixer = ChannelDeltaNet | LatentAttention
FeedForward = SparseMoE | SwiGLU


class GlmModel:
    """Token ids to logits. The residual of a token is ``hc_mult`` streams side by side, which begin
    as copies of its embedding and end in their mean.

    :ivar predictor: the next-token predictor, if the config has it.
    """

    def __init__(self, config: GlmConfig, context: BuildContext) -> None:
        build = _Builder(config, context)
        width, count = config.hidden_size, config.hc_mult
        self._embedding = Embedding(context, "text/token_embedding", out="embedded")
        self._streams = context.buffer("streams", config.stream_width)
        self._shape = (count, width)
        self._layers = [build.layer(index) for index in range(config.num_hidden_layers)]
        self._mean = StreamMean(context, num_streams=count, hidden_size=width, out="stream_mean")
        self._norm = build.norm("text/final_norm", out="final_hidden")
        self._head = OutputHead(context, "text/output_head")
        seen = "final_hidden" if config.mtp_hidden == "post_norm" else "stream_mean"
        self._hidden = context.buffer(seen, width)
        self.predictor = (
            GlmPredictor(build, self._embedding, self._head) if config.mtp else None
        )

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        embedded = self._embedding(batch.token_ids[: batch.num_tokens])
        streams = self._streams(batch.num_tokens)
        streams.unflatten(1, self._shape).copy_(embedded[:, None])
        for layer in self._layers:
            layer(streams, batch)
        return self._head(self._norm(self._mean(streams)), batch)

    def hidden(self, num_tokens: int) -> Tensor:
        """What the predictor reads of the last step, ``[num_tokens, H]``."""
        return self._hidden(num_tokens)


class GlmLayer:
    """A mixer and a feed-forward block, each in a hyper-connection and behind a norm."""

    def __init__(
        self, mixer_streams: SinkhornStreams, mixer_norm: RMSNorm, mixer: Mixer,
        mlp_streams: SinkhornStreams, mlp_norm: RMSNorm, mlp: FeedForward,
        output: Callable[[int], Tensor],
    ) -> None:
        self._mixer_streams, self._mixer_norm, self._mixer = mixer_streams, mixer_norm, mixer
        self._mlp_streams, self._mlp_norm, self._mlp = mlp_streams, mlp_norm, mlp
        self._output = output

    def __call__(self, streams: Tensor, batch: StepBatch) -> None:
        output = self._output(streams.shape[0])
        self._mixer(self._mixer_norm(self._mixer_streams.read(streams)), batch, output)
        self._mixer_streams.write(output, streams)
        self._mlp(self._mlp_norm(self._mlp_streams.read(streams)), output)
        self._mlp_streams.write(output, streams)


class GlmPredictor:
    """The MTP module: a token and the hidden state before it, through one layer on a plain residual
    stream. Its own hidden states are normed, whatever those of the model are. Every draft selects
    for itself; that later ones may take the first one's selection
    (``index_share_for_mtp_iteration``) saves an indexer and changes no answer.
    """

    token_ids = None

    def __init__(self, build: _Builder, embedding: Embedding, head: OutputHead) -> None:
        context, width, layer = build.context, build.config.hidden_size, "mtp/layers/0"
        self._embedding = embedding
        self._input = PredictorInput(
            context, width=width, eps=build.config.rms_norm_eps, out="mtp_stream")
        self._mixer_norm = build.norm(f"{layer}/input_norm", out="normed")
        self._mixer = build.attention(layer, "mtp_latent", 0, adds=True)
        self._mlp_norm = build.norm(f"{layer}/post_attention_norm", out="normed")
        self._mlp = build.experts(layer, adds=True)
        norm = build.norm("mtp/final_norm", out="mtp_hidden")
        self._output = PredictorOutput(context, norm, head, width=width)

    def forward(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See `NextTokenPredictor.forward`."""
        stream = self._input(self._embedding(batch.token_ids[: batch.num_tokens]), hidden)
        self._mixer(self._mixer_norm(stream), batch, stream)
        self._mlp(self._mlp_norm(stream), stream)
        return self._output(stream, batch)


class _Builder:
    """Makes the blocks of a model, each with the sizes of its config."""

    def __init__(self, config: GlmConfig, context: BuildContext) -> None:
        self.config, self.context = config, context

    def norm(self, name: str, *, out: str) -> RMSNorm:
        return RMSNorm(self.context, name, eps=self.config.rms_norm_eps, out=out)

    def layer(self, index: int) -> GlmLayer:
        name, is_dense = f"text/layers/{index}", self.config.mlp_layer_types[index] == "dense"
        return GlmLayer(
            self._streams(f"{name}/mixer_streams"), self.norm(f"{name}/input_norm", out="normed"),
            self._mixer(name, index), self._streams(f"{name}/ffn_streams"),
            self.norm(f"{name}/post_attention_norm", out="normed"),
            self._dense(name) if is_dense else self.experts(name, adds=False),
            self.context.buffer("block_output", self.config.hidden_size),
        )

    def _streams(self, name: str) -> SinkhornStreams:
        config = self.config
        return SinkhornStreams(
            self.context, name, num_streams=config.hc_mult, hidden_size=config.hidden_size,
            iterations=config.hc_sinkhorn_iters, eps=config.hc_eps, norm_eps=config.rms_norm_eps,
        )

    def _mixer(self, name: str, layer: int) -> Mixer:
        config = self.config
        ordinal = config.ordinals(config.layer_types[layer])[layer]
        if config.layer_types[layer] == "indexed_attention":
            return self.attention(name, "latent", ordinal, adds=False)
        return ChannelDeltaNet(
            self.context, f"{name}/kda", layer=ordinal, num_heads=config.linear_num_heads,
            head_dim=config.linear_head_dim, eps=config.rms_norm_eps,
            lower_bound=config.linear_lower_bound, adds=False,
        )

    def attention(self, name: str, state: str, layer: int, *, adds: bool) -> LatentAttention:
        config = self.config
        return LatentAttention(
            self.context, f"{name}/attention", state=state, layer=layer,
            num_heads=config.num_attention_heads, query_dim=config.q_lora_rank,
            latent_dim=config.kv_lora_rank, key_dim=config.qk_nope_head_dim,
            value_dim=config.v_head_dim, index=index_sizes(config), eps=config.rms_norm_eps,
            adds=adds,
        )

    def _dense(self, name: str) -> SwiGLU:
        gate, up, down = (f"{name}/mlp/{part}" for part in ("gate", "up", "down"))
        return SwiGLU(self.context, gate=gate, up=up, down=down, limit=self.config.swiglu_limit,
                      adds=False)

    def experts(self, name: str, *, adds: bool) -> SparseMoE:
        config = self.config
        return SparseMoE(
            self.context, f"{name}/moe", num_experts=config.n_routed_experts,
            top_k=config.num_experts_per_tok, scoring="sigmoid",
            scale=config.routed_scaling_factor, shared_score=False, limit=config.swiglu_limit,
            adds=adds,
        )


def index_sizes(config: GlmConfig) -> IndexSizes:
    """Of the indexer of an attention layer."""
    return IndexSizes(
        num_heads=config.index_n_heads, head_dim=config.index_head_dim, block=config.index_kpool,
        budget=config.index_topk // config.index_kpool,
    )
