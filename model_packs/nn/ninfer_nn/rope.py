"""Tables of rotary position embeddings (RoFormer, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Rope:
    """What turns queries and keys, for all layers.

    :ivar cos, sin: fp32 ``[max_context, R/2]``.
    :ivar axes: int64 ``[R/2]``, the axis of the position that turns each pair; None: all the first.
    """

    cos: Tensor
    sin: Tensor
    axes: Tensor | None = None

    @property
    def rotary_dim(self) -> int:
        """R, the components of a head that are rotated."""
        return 2 * self.cos.shape[1]


def rope_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """``theta^(-2i / R)``, FP64 ``[R/2]``; scale them for long-context variants."""
    return theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def mrope_axes(sections: Sequence[int]) -> Tensor:
    """Axes for `rope_tables` of interleaved multimodal positions (Qwen3-VL): int64 ``[R/2]``.

    :param sections: pairs that time, height and width turn. Height has pairs 1, 4, 7 ..., width
        2, 5, 8 ..., as many as it is due; time has all others.
    """
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def rope_tables(
    frequencies: Tensor, max_context: int, device: torch.device | str = "cpu",
    axes: Tensor | None = None,
) -> Rope:
    """Cosines and sines of ``position * frequency``.

    Angles are computed in FP64, because at far positions FP32 angles lose the fraction. R below
    the head's width rotates the first R components only.
    """
    angles = torch.outer(torch.arange(max_context, dtype=torch.float64), frequencies)
    cos, sin = angles.cos().float().to(device), angles.sin().float().to(device)
    return Rope(cos, sin, None if axes is None else axes.to(device))
