"""Residual streams with mixes that are doubly stochastic."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_nn.linear import Linear


class SinkhornStreams:
    """A manifold-constrained hyper-connection (mHC) around one block: what the block reads of the
    streams, and how they mix when it has written.

    :param name: of its parameters: ``coefficients`` ``[S (S + 2), S H]``, ``base`` ``[S (S + 2)]``
        and ``scale`` ``[3]``, as of the op ``sinkhorn_read``.
    :param hidden_size: H. :param eps: of the mixes. :param norm_eps: of the streams' norm.
    """

    def __init__(
        self, context: BuildContext, name: str, *, num_streams: int, hidden_size: int,
        iterations: int, eps: float, norm_eps: float,
    ) -> None:
        self._project = Linear(
            context, f"{name}/coefficients", out="stream_coefficients", dtype=torch.float32
        )
        self._read = context.bind(
            "sinkhorn_read",
            sizes={"num_streams": num_streams, "iterations": iterations, "eps": eps,
                   "norm_eps": norm_eps},
            base=context.tensor(f"{name}/base", dtype=torch.float32),
            scale=context.tensor(f"{name}/scale", dtype=torch.float32),
        )
        self._write = context.bind("sinkhorn_write", sizes={"num_streams": num_streams})
        self._out = context.buffer("stream_read", hidden_size)
        self._mix = context.buffer(
            "stream_mix", num_streams * (num_streams + 1), dtype=torch.float32
        )

    def read(self, streams: Tensor) -> Tensor:
        """``[T, S H]`` to the block's input ``[T, H]``, before its norm."""
        count = streams.shape[0]
        out = self._out(count)
        self._read(self._project(streams), streams, out, self._mix(count))
        return out

    def write(self, output: Tensor, streams: Tensor) -> None:
        """Mix the streams in place, with the block's output ``[T, H]``; after :meth:`read`."""
        self._write(output, self._mix(streams.shape[0]), streams)


class StreamMean:
    """``[T, S H]`` to ``[T, H]`` in the buffer ``out``."""

    def __init__(
        self, context: BuildContext, *, num_streams: int, hidden_size: int, out: str
    ) -> None:
        self._mean = context.bind("stream_mean", sizes={"num_streams": num_streams})
        self._out = context.buffer(out, hidden_size)

    def __call__(self, streams: Tensor) -> Tensor:
        mean: Tensor = self._mean(streams, self._out(streams.shape[0]))
        return mean
