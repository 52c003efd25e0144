"""Attention blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ninfer_core.api import BuildContext, StatePlane, StateSpec
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_nn.block_index import ROPE_AXES, IndexSizes, MeanIndex, indexed_states
from ninfer_nn.columns import columns
from ninfer_nn.linear import Linear
from ninfer_nn.rope import Rope


class Attention:
    """Causal grouped-query attention over the paged cache, added to the residual stream.

    :param query, key, value, output: projections; the first three run as one product.
    :param bias: direct parameters of query, key and value, or none.
    :param planes: the cache of this layer.
    :param rope: of `rope_tables`; None for models without rotary positions.
    :param scale: of the scores; default ``head_dim ** -0.5``.
    :param adds: False: written instead of added.
    """

    def __init__(
        self, context: BuildContext, *, query: str, key: str, value: str, output: str,
        planes: PagedPlanes, num_heads: int, num_kv_heads: int, head_dim: int,
        rope: Rope | None, scale: float | None = None,
        bias: Sequence[str] = (), output_bias: Sequence[str] = (), adds: bool = True,
    ) -> None:
        widths = [head_dim * heads for heads in (num_heads, num_kv_heads, num_kv_heads)]
        self._project = Linear(context, query, key, value, out="qkv", bias=bias)
        self._columns = columns(context, "qkv", widths)
        self._mix = _Mixer(
            context, planes, rope, num_heads=num_heads, num_kv_heads=num_kv_heads,
            head_dim=head_dim, scale=scale,
        )
        projection = Linear(context, output, bias=output_bias)
        self._give = projection.add_to if adds else projection.write

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._project(x)
        query, key, value = self._columns(x.shape[0])
        self._give(stream, self._mix(query, key, value, batch))


class GatedAttention:
    """Attention with normed queries and keys and a gate on what it gives (Qwen3-Next, Qwen3.5):
    ``output(sigmoid(gate x) * attention(x))``, added to the residual stream.

    :param name: of its parameters: ``query``, ``key``, ``gate``, ``value``, ``output``, and
        ``query_norm`` and ``key_norm`` of a head, which multiply by ``1 + w``.
    :param planes: the cache of this layer.
    :param eps: of the norms. :param index: chooses blocks of earlier tokens; None: all.
    :param adds: False: written instead of added.
    """

    def __init__(
        self, context: BuildContext, name: str, *, planes: PagedPlanes, num_heads: int,
        num_kv_heads: int, head_dim: int, rope: Rope, eps: float, index: MeanIndex | None = None,
        adds: bool = True,
    ) -> None:
        heads = {
            "query": num_heads, "key": num_kv_heads, "gate": num_heads, "value": num_kv_heads
        }
        self._project = Linear(context, *[f"{name}/{part}" for part in heads], out="qkgv")
        self._columns = columns(context, "qkgv", [n * head_dim for n in heads.values()])
        norms = context.tensor(f"{name}/query_norm"), context.tensor(f"{name}/key_norm")
        self._mix = _Mixer(
            context, planes, rope, num_heads=num_heads, num_kv_heads=num_kv_heads,
            head_dim=head_dim, norms=norms, eps=eps, unit_offset=True,
            block=index.block if index else None,
        )
        self._index = index
        self._gate = context.bind("sigmoid_gate")
        output = Linear(context, f"{name}/output")
        self._give = output.add_to if adds else output.write

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._project(x)
        query, key, gate, value = self._columns(x.shape[0])
        chosen = [self._index(x, batch)] if self._index else []
        mixed = self._mix(query, key, value, batch, *chosen)
        self._give(stream, self._gate(mixed, gate, mixed))


def indexed_attention_states(
    name: str, num_layers: int, *, num_kv_heads: int, head_dim: int, index: IndexSizes
) -> tuple[StateSpec, ...]:
    """What a sequence owns for so many `IndexedAttention` layers."""
    shape = num_kv_heads, head_dim
    planes = StatePlane("key", shape), StatePlane("value", shape)
    return indexed_states(name, num_layers, planes, index, index.head_dim + ROPE_AXES)


class IndexedAttention(GatedAttention):
    """Gated attention to chosen blocks of earlier tokens (Qwen3.8-Flash-Next).

    :param name: of its parameters: those of `GatedAttention`, and below ``index`` of `MeanIndex`.
    :param state, layer: of `indexed_attention_states`.
    """

    def __init__(
        self, context: BuildContext, name: str, *, state: str, layer: int, num_heads: int,
        num_kv_heads: int, head_dim: int, index: IndexSizes, rope: Rope, eps: float,
        adds: bool = True,
    ) -> None:
        chooser = MeanIndex(
            context, f"{name}/index", state=state, layer=layer, sizes=index, rope=rope, eps=eps
        )
        super().__init__(
            context, name, planes=context.state(state, layer), num_heads=num_heads,
            num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope, eps=eps, index=chooser,
            adds=adds,
        )


class _Mixer:
    """Norms, rotation, cache and attention: heads of a step to ``[T, Hq D]``.

    :param block: tokens of a block, where blocks are chosen; else None.
    """

    def __init__(
        self, context: BuildContext, planes: PagedPlanes, rope: Rope | None, *, num_heads: int,
        num_kv_heads: int, head_dim: int, scale: float | None = None,
        norms: tuple[Tensor | None, Tensor | None] = (None, None), eps: float = 0.0,
        unit_offset: bool = False, block: int | None = None,
    ) -> None:
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        rotary_dim = rope.rotary_dim if rope else 0
        self._append = context.bind(
            "rope_kv_append",
            sizes={**heads, "rotary_dim": rotary_dim, "eps": eps, "unit_offset": unit_offset},
            planes=planes, cos=rope and rope.cos, sin=rope and rope.sin, axes=rope and rope.axes,
            query_norm=norms[0], key_norm=norms[1],
        )
        attention = "selected_attention" if block else "paged_attention"
        sizes = {**heads, "scale": scale or head_dim**-0.5, **({"block": block} if block else {})}
        self._attend = context.bind(attention, sizes=sizes, planes=planes)
        self._mixed = context.buffer("attention_mixed", num_heads * head_dim)

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, batch: StepBatch, *chosen: Tensor
    ) -> Tensor:
        self._append(query, key, value, batch)
        mixed: Tensor = self._attend(query, *chosen, batch, self._mixed(query.shape[0]))
        return mixed
