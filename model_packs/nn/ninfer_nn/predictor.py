"""The ends of a next-token predictor on one residual stream."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn.linear import Linear
from ninfer_nn.norm import RMSNorm


class PredictorInput:
    """The embedding of a token and the hidden state before it, ``[T, H]`` each, to the stream
    ``[T, H]``: normed each by itself, and projected side by side, the embedding first.

    :param out: name of the buffer of the stream.
    """

    def __init__(
        self, context: BuildContext, *, width: int, eps: float, out: str, unit_offset: bool = False
    ) -> None:
        sizes = {"eps": eps, "unit_offset": unit_offset}
        self._norms = [
            context.bind("rmsnorm", sizes=sizes, weight=context.tensor(f"mtp/{name}_norm"))
            for name in ("embedding", "hidden")
        ]
        self._width, self._sides = width, context.buffer("mtp_sides", 2 * width)
        self._projection = Linear(context, "mtp/input_projection", out=out)

    def __call__(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        sides = self._sides(embedded.shape[0])
        self._norms[0](embedded, sides[:, : self._width])
        self._norms[1](hidden, sides[:, self._width :])
        return self._projection(sides)


class PredictorOutput:
    """The stream ``[T, H]`` to what is normed of it and, as a copy, the rows that are wanted."""

    def __init__(self, context: BuildContext, norm: RMSNorm, *, width: int) -> None:
        self._norm, self._rows = norm, context.buffer("mtp_hidden", width)

    def __call__(self, stream: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
        normed, wanted = self._norm(stream), batch.logit_rows[: batch.num_logits]
        return normed, torch.index_select(normed, 0, wanted, out=self._rows(batch.num_logits))
