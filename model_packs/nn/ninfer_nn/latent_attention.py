"""Multi-head latent attention: keys and values of all heads are made of one cached vector."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext, StatePlane, StateSpec
from ninfer_core.state.step import StepBatch
from ninfer_nn.block_index import IndexSizes, bind_select, indexed_states
from ninfer_nn.columns import columns
from ninfer_nn.linear import Linear

INDEX_EPS = 1e-6
"""Of the index keys' norm; the models of this kind have no setting for it."""


def latent_attention_states(
    name: str, num_layers: int, *, latent_dim: int, index: IndexSizes
) -> tuple[StateSpec, ...]:
    """What a sequence owns for so many `LatentAttention` layers."""
    planes = (StatePlane("key", (1, latent_dim)),)
    return indexed_states(name, num_layers, planes, index, 2 * index.head_dim)


class LatentAttention:
    """Sparse latent attention without positions (DeepSeek-V2, section 2.1, with the pooled indexer
    of GLM-5.3-Flash), added to the residual stream.

    It runs absorbed: heads of queries are taken into the space of latents, all attend to the same
    cached latents, and what they read is taken to values.

    :param name: of its parameters: ``query_down``, ``query_norm``, ``query_up``, ``latent``,
        ``latent_norm``, ``key_up`` (latents to keys, transposed: for each head ``[latent_dim,
        key_dim]``), ``value_up`` (for each head ``[value_dim, latent_dim]``) and ``output``; of
        the indexer ``index/query`` (of what ``query_up`` reads), ``index/key``, ``index/key_norm``,
        ``index/key_norm_bias``, ``index/head_weights``, ``index/pool_gate`` and
        ``index/pool_bias``.
    :param state, layer: of `latent_attention_states`.
    :param query_dim: of what ``query_down`` gives. :param key_dim, value_dim: of a head.
    :param eps: of the norms. :param adds: False: written instead of added.
    """

    def __init__(
        self, context: BuildContext, name: str, *, state: str, layer: int, num_heads: int,
        query_dim: int, latent_dim: int, key_dim: int, value_dim: int, index: IndexSizes,
        eps: float, adds: bool = True,
    ) -> None:
        parts = [f"{name}/{part}" for part in ("query_down", "latent", "index/key",
                                               "index/pool_gate")]
        self._project = Linear(context, *parts, out="mla_projected")
        self._projected = columns(
            context, "mla_projected", [query_dim, latent_dim, index.head_dim, index.head_dim]
        )
        self._norms = [
            context.bind(
                "rmsnorm", sizes={"eps": eps, "unit_offset": False},
                weight=context.tensor(f"{name}/{each}_norm"),
            )
            for each in ("query", "latent")
        ]
        self._raise = Linear(
            context, f"{name}/query_up", f"{name}/index/query", out="mla_queries"
        )
        self._queries = columns(
            context, "mla_queries", [num_heads * key_dim, index.num_heads * index.head_dim]
        )
        self._index = _PooledIndex(context, f"{name}/index", state, layer, index)
        self._bind_attention(context, state, layer, num_heads, latent_dim, key_dim, index.block)
        self._absorb, self._expand = (
            context.bind("head_projection", sizes={"num_heads": num_heads},
                         weight=context.weight(f"{name}/{part}_up"))
            for part in ("key", "value")
        )
        self._values = context.buffer("mla_values", num_heads * value_dim)
        output = Linear(context, f"{name}/output")
        self._give = output.add_to if adds else output.write

    def _bind_attention(
        self, context: BuildContext, state: str, layer: int, num_heads: int, latent_dim: int,
        key_dim: int, block: int,
    ) -> None:
        heads = {"num_kv_heads": 1, "head_dim": latent_dim}
        planes = context.state(state, layer)
        self._append = context.bind("key_append", sizes=heads, planes=planes)
        self._attend = context.bind(
            "selected_attention", planes=planes,
            sizes={**heads, "num_heads": num_heads, "scale": key_dim**-0.5, "block": block},
        )
        self._absorbed = context.buffer("mla_absorbed", num_heads * latent_dim)
        self._mixed = context.buffer("mla_mixed", num_heads * latent_dim)

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        count = x.shape[0]
        self._project(x)
        low, latent, key, pool_gate = self._projected(count)
        for each, norm in zip((low, latent), self._norms, strict=True):
            norm(each, each)
        self._append(latent, batch)
        self._raise(low)
        query, index_query = self._queries(count)
        blocks = self._index(x, index_query, key, pool_gate, batch)
        absorbed = self._absorb(query, self._absorbed(count))
        mixed = self._attend(absorbed, blocks, batch, self._mixed(count))
        self._give(stream, self._expand(mixed, self._values(count)))


class _PooledIndex:
    """Blocks by a learnt average of their keys, and heads by learnt weights (GLM-5.3-Flash)."""

    def __init__(
        self, context: BuildContext, name: str, state: str, layer: int, sizes: IndexSizes
    ) -> None:
        self._weigh = Linear(
            context, f"{name}/head_weights", out="index_weights", dtype=torch.float32
        )
        self._append = context.bind(
            "softmax_index_append",
            sizes={"head_dim": sizes.head_dim, "block": sizes.block, "eps": INDEX_EPS},
            planes=context.state(f"{state}_index", layer),
            tail=context.state(f"{state}_tail", layer),
            norm=context.tensor(f"{name}/key_norm"),
            norm_bias=context.tensor(f"{name}/key_norm_bias"),
            position_bias=context.tensor(f"{name}/pool_bias"),
        )
        scale = (sizes.head_dim * sizes.num_heads) ** -0.5
        self._select = bind_select(context, state, layer, sizes, scale)

    def __call__(
        self, x: Tensor, query: Tensor, key: Tensor, pool_gate: Tensor, batch: StepBatch
    ) -> Tensor:
        self._append(key, pool_gate, batch)
        return self._select(query, self._weigh(x), batch)
