"""Choice of the blocks of tokens that sparse attention reads, by small keys of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import BuildContext, PagedStateSpec, SlotStateSpec, StatePlane, StateSpec
from ninfer_core.state.step import StepBatch
from ninfer_nn.columns import columns
from ninfer_nn.linear import Linear
from ninfer_nn.rope import Rope

TAIL_TOKENS = 64
"""Least columns of a tail: of an open block, and of"""
STEP_TOKENS = 16
"""as many tokens behind it as a step with drafts has at most."""

ROPE_AXES = 3


@frozen
class IndexSizes:
    """Of an indexer.

    :ivar num_heads, head_dim: of its queries. :ivar block: tokens that share a key.
    :ivar budget: most blocks that a token attends to, besides its own open one.
    """

    num_heads: int
    head_dim: int
    block: int
    budget: int


def indexed_states(
    name: str, num_layers: int, planes: tuple[StatePlane, ...], index: IndexSizes, tail_width: int
) -> tuple[StateSpec, ...]:
    """A cache, its index keys, and the columns that the next of them are made of. The keys are
    not coded: what is chosen would depend on the code, and blocks that differ are no small error.
    """
    keys = StatePlane("index_key", (index.head_dim,), index.block)
    open_blocks = -(-(index.block - 1 + STEP_TOKENS) // index.block)
    size = max(TAIL_TOKENS, open_blocks * index.block)
    return (
        PagedStateSpec(name, num_layers, planes),
        PagedStateSpec(f"{name}_index", num_layers, (keys,), "float32"),
        SlotStateSpec(f"{name}_tail", num_layers, (size, tail_width), (0,)),
    )


class MeanIndex:
    """Blocks by the mean of their keys, normed and rotated (Qwen3.8-Flash-Next).

    :param name: of its parameters: ``query``, ``key``, and ``query_norm`` and ``key_norm`` of a
        head, which multiply by ``1 + w``.
    :param state, layer: of `indexed_states`.
    """

    def __init__(
        self, context: BuildContext, name: str, *, state: str, layer: int, sizes: IndexSizes,
        rope: Rope, eps: float,
    ) -> None:
        self.block = sizes.block
        self._project = Linear(context, f"{name}/query", f"{name}/key", out="index_qk")
        widths = [sizes.num_heads * sizes.head_dim, sizes.head_dim]
        self._columns = columns(context, "index_qk", widths)
        self._append = context.bind(
            "mean_index_append",
            sizes={
                "num_heads": sizes.num_heads, "head_dim": sizes.head_dim, "block": sizes.block,
                "rotary_dim": rope.rotary_dim, "eps": eps, "unit_offset": True,
            },
            planes=context.state(f"{state}_index", layer),
            tail=context.state(f"{state}_tail", layer),
            cos=rope.cos, sin=rope.sin, axes=rope.axes,
            query_norm=context.tensor(f"{name}/query_norm"),
            key_norm=context.tensor(f"{name}/key_norm"),
        )
        self._select = bind_select(context, state, layer, sizes, sizes.head_dim**-0.5)

    def __call__(self, x: Tensor, batch: StepBatch) -> Tensor:
        """``[T, H]`` to blocks int32 ``[T, budget]``, as of ``index_select``."""
        self._project(x)
        query, key = self._columns(x.shape[0])
        self._append(query, key, batch)
        return self._select(query, None, batch)


def bind_select(
    context: BuildContext, state: str, layer: int, sizes: IndexSizes, scale: float
) -> Callable[[Tensor, Tensor | None, StepBatch], Tensor]:
    """``(queries [T, Hi D], weights, batch) -> blocks``, into a buffer of all layers."""
    select = context.bind(
        "index_select", planes=context.state(f"{state}_index", layer),
        sizes={
            "num_heads": sizes.num_heads, "head_dim": sizes.head_dim, "block": sizes.block,
            "budget": sizes.budget, "scale": scale,
        },
    )
    blocks = context.buffer("selected_blocks", sizes.budget, dtype=torch.int32)

    def call(query: Tensor, weights: Tensor | None, batch: StepBatch) -> Tensor:
        chosen: Tensor = select(query, weights, batch, blocks(query.shape[0]))
        return chosen

    return call
