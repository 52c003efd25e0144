"""Residuals of several streams, read and written by gates."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_nn.columns import columns
from ninfer_nn.linear import Linear


class GroupedRMSNorm:
    """RMSNorm of each of the S streams ``[T, S H]``, by weights ``1 + w`` of all of them."""

    def __init__(
        self, context: BuildContext, name: str, *, num_streams: int, eps: float, out: str
    ) -> None:
        weight = context.tensor(name)
        sizes = {"eps": eps, "groups": num_streams, "unit_offset": True}
        self._norm = context.bind("grouped_rmsnorm", sizes=sizes, weight=weight)
        self._out = context.buffer(out, weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        normed: Tensor = self._norm(x, self._out(x.shape[0]))
        return normed


class GatedStreams:
    """A gated hyper-connection (Qwen4-Exp): what a block reads of a residual ``[T, S H]``, and
    where in it its result goes.

    :param name: of its parameters: ``norm`` ``[S H]``, ``down`` ``[R, S H]``, ``up`` ``[S H, R]``,
        and ``inject`` ``[S, S H]``.
    :param writes: whether a block writes; else there is no ``inject``.
    """

    def __init__(
        self, context: BuildContext, name: str, *, num_streams: int, hidden_size: int, rank: int,
        eps: float, writes: bool = True,
    ) -> None:
        self._norm = GroupedRMSNorm(
            context, f"{name}/norm", num_streams=num_streams, eps=eps, out="streams_normed"
        )
        widths = {"down": rank, **({"inject": num_streams} if writes else {})}
        low = f"streams_{sum(widths.values())}"  # a buffer has one width
        self._project = Linear(context, *[f"{name}/{part}" for part in widths], out=low)
        self._columns = columns(context, low, [*widths.values()])
        self._shrink = context.bind("scaled_silu", sizes={"scale": 1 / num_streams})
        self._low = context.buffer("streams_low", rank)
        self._up = Linear(context, f"{name}/up", out="streams_gates")
        sizes = {"num_streams": num_streams}
        self._read = context.bind("stream_read", sizes=sizes)
        self._add = context.bind("stream_add", sizes=sizes) if writes else None
        self._out = context.buffer("block_input", hidden_size)

    def read(self, streams: Tensor) -> Tensor:
        """``[T, H]`` of ``[T, S H]``, valid until the next read."""
        count, normed = streams.shape[0], self._norm(streams)
        self._project(normed)
        low = self._shrink(self._columns(count)[0], self._low(count))
        read: Tensor = self._read(self._up(low), normed, self._out(count))
        return read

    def write(self, streams: Tensor, y: Tensor) -> None:
        """Add ``y`` ``[T, H]``, what the block made of the last read, to the streams in place."""
        assert self._add is not None  # of a connection that only reads
        self._add(y, self._columns(y.shape[0])[1], streams)
