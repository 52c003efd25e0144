"""The ends of a next-token predictor on one residual stream."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.state.step import StepBatch
from ninfer_nn.linear import Linear, OutputHead, WantedRows
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
    """The stream ``[T, W]`` to fp32 logits of the wanted tokens, and to what is normed of them,
    ``[batch.num_logits, W]``, which is the predictor's hidden state."""

    def __init__(
        self, context: BuildContext, norm: RMSNorm, head: OutputHead, *, width: int
    ) -> None:
        self._norm, self._head = norm, head
        self._wanted = WantedRows(context, width, out="mtp_wanted")

    def __call__(self, stream: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
        normed = self._norm(self._wanted(stream, batch))
        return self._head.of_rows(normed), normed
