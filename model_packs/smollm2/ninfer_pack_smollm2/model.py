"""The mathematics of a Llama: RMSNorm, grouped-query attention with RoPE, SwiGLU."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import Attention, Embedding, OutputHead, RMSNorm, SwiGLU
from ninfer_nn.rope import Rope, rope_frequencies, rope_tables
from ninfer_pack_smollm2.config import LlamaConfig


class LlamaModel:
    """Token ids to logits. The residual stream ``[T, H]`` is one buffer that layers add to."""

    def __init__(self, config: LlamaConfig, context: BuildContext) -> None:
        frequencies = rope_frequencies(config.head_dim, config.rope_theta)
        rope = rope_tables(frequencies, context.max_context, context.device)
        layers = range(config.num_hidden_layers)
        self._embedding = Embedding(context, "text/token_embedding", out="stream")
        self._layers = [LlamaLayer(config, context, layer, rope) for layer in layers]
        self._norm = RMSNorm(context, "text/final_norm", eps=config.rms_norm_eps, out="normed")
        self._head = OutputHead(context, "text/output_head")

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        stream = self._embedding(batch.token_ids[: batch.num_tokens])
        for layer in self._layers:
            layer(stream, batch)
        return self._head(self._norm(stream), batch)


class LlamaLayer:
    """Attention and MLP; each reads the stream through a norm and adds to it."""

    def __init__(
        self, config: LlamaConfig, context: BuildContext, layer: int, rope: Rope
    ) -> None:
        name, eps = f"text/layers/{layer}", config.rms_norm_eps
        self._input_norm = RMSNorm(context, f"{name}/input_norm", eps=eps, out="normed")
        self._attention = Attention(
            context, query=f"{name}/attention/query", key=f"{name}/attention/key",
            value=f"{name}/attention/value", output=f"{name}/attention/output",
            planes=context.state("kv", layer), num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim, rope=rope,
        )
        self._mlp_norm = RMSNorm(context, f"{name}/post_attention_norm", eps=eps, out="normed")
        self._mlp = SwiGLU(
            context, gate=f"{name}/mlp/gate", up=f"{name}/mlp/up", down=f"{name}/mlp/down"
        )

    def __call__(self, stream: Tensor, batch: StepBatch) -> None:
        self._attention(self._input_norm(stream), batch, stream)
        self._mlp(self._mlp_norm(stream), stream)
