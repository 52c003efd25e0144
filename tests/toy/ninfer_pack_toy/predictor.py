"""The toy's next-token predictor: a token beside the hidden state before it, through a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn import Embedding, Linear, OutputHead, RMSNorm

Layer = Callable[[Tensor, StepBatch], None]


class ToyPredictor:
    """A `NextTokenPredictor` with the model's own table and head.

    :param make_norm: ``(name, out) -> RMSNorm``. :param layer: adds to the residual stream.
    """

    token_ids = None

    def __init__(
        self, context: BuildContext, make_norm: Callable[[str, str], RMSNorm], layer: Layer,
        embedding: Embedding, head: OutputHead,
    ) -> None:
        self._embedding, self._layer, self._head = embedding, layer, head
        self._embedding_norm = make_norm("mtp/embedding_norm", "mtp_embedded")
        self._hidden_norm = make_norm("mtp/hidden_norm", "normed")
        self._into = Linear(context, "mtp/input_projection", out="stream")
        self._norm = make_norm("mtp/final_norm", "mtp_normed")

    def forward(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """See `NextTokenPredictor.forward`."""
        embedded = self._embedding(batch.token_ids[: batch.num_tokens])
        pair = self._embedding_norm(embedded), self._hidden_norm(hidden)
        stream = self._into(torch.cat(pair, dim=1))
        self._layer(stream, batch)
        normed = self._norm(stream)
        return self._head(normed, batch), normed[batch.logit_rows[: batch.num_logits]]
