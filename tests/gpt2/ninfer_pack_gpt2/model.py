"""The mathematics: learned positions, LayerNorm before attention and MLP, a bias everywhere."""

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import Attention, Embedding, Linear, OutputHead
from ninfer_pack_gpt2.config import Gpt2Config


class Gpt2Model:
    """Token ids to logits. The residual stream ``[T, H]`` is one buffer that layers add to."""

    def __init__(self, config: Gpt2Config, context: BuildContext) -> None:
        self._tokens = Embedding(context, "text/token_embedding", out="stream")
        self._positions = Embedding(context, "text/position_embedding", out="positions")
        self._layers = [Gpt2Layer(config, context, layer) for layer in range(config.n_layer)]
        self._norm = LayerNorm(context, "text/final_norm", config.layer_norm_epsilon)
        self._head = OutputHead(context, "text/output_head")

    def forward(self, batch: StepBatch) -> Tensor:
        """fp32 logits ``[batch.num_logits, V]``."""
        stream = self._tokens(batch.token_ids[: batch.num_tokens])
        stream += self._positions(batch.positions[: batch.num_tokens])
        for layer in self._layers:
            layer(stream, batch)
        return self._head(self._norm(stream), batch)


class Gpt2Layer:
    """Attention and MLP; each reads the stream through a norm and adds to it."""

    def __init__(self, config: Gpt2Config, context: BuildContext, layer: int) -> None:
        name, eps = f"text/layers/{layer}", config.layer_norm_epsilon
        self._input_norm = LayerNorm(context, f"{name}/input_norm", eps)
        self._attention = Attention(
            context, query=f"{name}/attention/query/weight", key=f"{name}/attention/key/weight",
            value=f"{name}/attention/value/weight", output=f"{name}/attention/output/weight",
            bias=[f"{name}/attention/{part}/bias" for part in ("query", "key", "value")],
            output_bias=[f"{name}/attention/output/bias"], planes=context.state("kv", layer),
            num_heads=config.n_head, num_kv_heads=config.n_head, rope=None,
            head_dim=config.n_embd // config.n_head,
        )
        self._mlp_norm = LayerNorm(context, f"{name}/mlp_norm", eps)
        self._up = Linear(context, f"{name}/mlp/up/weight", bias=[f"{name}/mlp/up/bias"], out="mlp")
        self._down = Linear(context, f"{name}/mlp/down/weight", bias=[f"{name}/mlp/down/bias"])
        self._gelu = context.bind("gpt2.gelu")

    def __call__(self, stream: Tensor, batch: StepBatch) -> None:
        self._attention(self._input_norm(stream), batch, stream)
        inner = self._up(self._mlp_norm(stream))
        self._down.add_to(stream, self._gelu(inner, inner))


class LayerNorm:
    """``[T, H]`` to ``[T, H]`` in the buffer ``normed``."""

    def __init__(self, context: BuildContext, name: str, eps: float) -> None:
        weight, bias = context.tensor(f"{name}/weight"), context.tensor(f"{name}/bias")
        self._norm = context.bind("gpt2.layernorm", sizes={"eps": eps}, weight=weight, bias=bias)
        self._out = context.buffer("normed", weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        normed: Tensor = self._norm(x, self._out(x.shape[0]))
        return normed
