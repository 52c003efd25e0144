"""Attention blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.nn.linear import Linear
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


class Attention:
    """Causal grouped-query attention over the paged cache, added to the residual stream.

    :param query, key, value, output: projections; the first three run as one product.
    :param bias: direct parameters of query, key and value, or none.
    :param planes: the cache of this layer.
    :param rope: cosines and sines of `rope_tables`; None for models without rotary positions.
    :param scale: of the scores; default ``head_dim ** -0.5``.
    """

    def __init__(
        self, context: BuildContext, *, query: str, key: str, value: str, output: str,
        planes: PagedPlanes, num_heads: int, num_kv_heads: int, head_dim: int,
        rope: tuple[Tensor, Tensor] | None, scale: float | None = None,
        bias: Sequence[str] = (), output_bias: Sequence[str] = (),
    ) -> None:
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        cos, sin = rope or (None, None)
        rotary_dim = 0 if cos is None else 2 * cos.shape[1]
        self._width = num_heads * head_dim
        self._qkv = Linear(context, query, key, value, out="qkv", bias=bias)
        self._append = context.bind(
            "rope_kv_append", sizes={**heads, "rotary_dim": rotary_dim},
            planes=planes, cos=cos, sin=sin,
        )
        self._attend = context.bind(
            "paged_attention", sizes={**heads, "scale": scale or head_dim**-0.5}, planes=planes
        )
        self._mixed = context.buffer("attention_mixed", self._width)
        self._output = Linear(context, output, bias=output_bias)

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        qkv = self._qkv(x)
        self._append(qkv, batch)
        mixed = self._attend(qkv[:, : self._width], batch, self._mixed(x.shape[0]))
        self._output.add_to(stream, mixed)
