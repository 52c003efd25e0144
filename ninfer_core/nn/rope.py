"""Tables of rotary position embeddings (RoFormer, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """``theta^(-2i / R)``, FP64 ``[R/2]``; scale them for long-context variants."""
    return theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def rope_tables(
    frequencies: Tensor, max_context: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of ``position * frequency``, fp32 ``[max_context, R/2]`` each.

    Angles are computed in FP64, because at far positions FP32 angles lose the fraction. R below
    the head's width rotates the first R components only.
    """
    angles = torch.outer(torch.arange(max_context, dtype=torch.float64), frequencies)
    return angles.cos().float().to(device), angles.sin().float().to(device)
