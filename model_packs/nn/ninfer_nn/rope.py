"""Tables of rotary position embeddings (RoFormer, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log, pi

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


def yarn_frequencies(
    rotary_dim: int, theta: float, *, factor: float, original: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Those of a context that is ``factor`` times as long as ``original`` tokens, FP64 ``[R/2]``
    (YaRN, section 3.2): pairs that turn more than ``beta_fast`` times in the original one stay as
    they are, those that turn less than ``beta_slow`` times are slowed down by the factor, and
    between them is a ramp of whole pairs."""
    low, high = (rotary_dim * log(original / (2 * pi * turns)) / (2 * log(theta))
                 for turns in (beta_fast, beta_slow))
    first, last = max(floor(low), 0), min(ceil(high), rotary_dim - 1)
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
    slowed = ((pairs - first) / (last - first or 1e-3)).clamp(0, 1)
    return rope_frequencies(rotary_dim, theta) * (1 - slowed + slowed / factor)


def yarn_scale(factor: float) -> float:
    """Of queries and keys, so that attention stays as sharp (YaRN, section 3.4)."""
    return 0.1 * log(factor) + 1


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
    axes: Tensor | None = None, scale: float = 1.0,
) -> Rope:
    """Cosines and sines of ``position * frequency``, times ``scale``.

    Angles are computed in FP64, because at far positions FP32 angles lose the fraction. R below
    the head's width rotates the first R components only.
    """
    angles = torch.outer(torch.arange(max_context, dtype=torch.float64), frequencies)
    cos, sin = ((scale * each).float().to(device) for each in (angles.cos(), angles.sin()))
    return Rope(cos, sin, None if axes is None else axes.to(device))
