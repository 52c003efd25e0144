"""Embeddings of hashed n-grams, added to the residual inside a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import BuildContext, SlotStateSpec
from ninfer_core.state.step import StepBatch
from ninfer_nn.columns import columns
from ninfer_nn.gated_streams import GroupedRMSNorm
from ninfer_nn.linear import Linear

_TOKENS, _CONVOLUTION = "ngram_tokens", "ngram_convolution"


@frozen
class NgramHash:
    """From last tokens to rows of a table; fields as of the op ``ngram_rows``."""

    ngram_size: int
    heads_per_ngram: int
    eos: int
    multipliers: Sequence[int]
    moduli: Sequence[int]
    offsets: Sequence[int]


def ngram_states(
    num_layers: int, *, ngram_size: int, channels: int, taps: int
) -> tuple[SlotStateSpec, ...]:
    """What a sequence owns for so many `NgramEmbedding` layers of ``channels`` = S H."""
    window = (taps - 1) * ngram_size
    return (
        SlotStateSpec(_TOKENS, num_layers, (ngram_size - 1,), (), "int64"),
        SlotStateSpec(_CONVOLUTION, num_layers, (window, channels), (channels,)),
    )


class NgramEmbedding:
    """Rows that hashes of the last tokens choose (as in Qwen4-Exp): their value, gated for each
    stream by how its key meets what is in the stream, and a convolution of it along the sequence
    that takes every n-th column, are added to the residual.

    :param name: of its parameters: ``table`` ``[V, D]``, ``key`` ``[S H, E]`` and ``value``
        ``[H, E]`` of all heads side by side, ``key_norm``, ``query_norm`` and ``convolution_norm``
        ``[S H]``, ``convolution`` ``[taps, S H]``.
    :param layer: ordinal among the layers of `ngram_states`.
    """

    def __init__(
        self, context: BuildContext, name: str, *, layer: int, hash: NgramHash, num_streams: int,
        hidden_size: int, eps: float,
    ) -> None:
        self._hash = context.bind(
            "ngram_rows",
            sizes={"ngram_size": hash.ngram_size, "heads_per_ngram": hash.heads_per_ngram,
                   "eos": hash.eos},
            window=context.state(_TOKENS, layer),
            **{part: torch.tensor(getattr(hash, part), dtype=torch.int64, device=context.device)
               for part in ("multipliers", "moduli", "offsets")},
        )
        heads, table = len(hash.moduli), context.weight(f"{name}/table")
        self._width = table.info.shape[1]
        self._gather = context.bind("embedding", weight=table)
        self._rows = context.buffer("ngram_rows", heads, dtype=torch.int64)
        self._embedded = context.buffer("ngram_embedded", heads * self._width)
        self._project = Linear(context, f"{name}/key", f"{name}/value", out="ngram_projected")
        wide = num_streams * hidden_size
        self._projected = columns(context, "ngram_projected", [wide, hidden_size])
        self._key_norm, self._query_norm, self._norm = (
            GroupedRMSNorm(context, f"{name}/{part}_norm", num_streams=num_streams, eps=eps,
                           out=f"ngram_{part}")
            for part in ("key", "query", "convolution")
        )
        self._gate = context.bind("signed_sqrt_gate", sizes={"num_streams": num_streams})
        self._gated = context.buffer("ngram_gated", wide)
        self._convolve = context.bind(
            "causal_conv1d", sizes={"dilation": hash.ngram_size},
            weight=context.tensor(f"{name}/convolution"), planes=context.state(_CONVOLUTION, layer),
        )
        self._convolved = context.buffer("ngram_convolved", wide)

    def __call__(self, streams: Tensor, batch: StepBatch) -> None:
        """Add to ``streams`` ``[T, S H]`` in place."""
        count = streams.shape[0]
        rows, embedded = self._hash(batch, self._rows(count)), self._embedded(count)
        self._gather(rows.view(-1), embedded.view(-1, self._width))
        self._project(embedded)
        key, value = self._projected(count)
        gated = self._gate(
            self._key_norm(key), self._query_norm(streams), value, self._gated(count)
        )
        convolved = self._convolve(self._norm(gated), batch, self._convolved(count))
        streams.add_(gated.add_(convolved))
