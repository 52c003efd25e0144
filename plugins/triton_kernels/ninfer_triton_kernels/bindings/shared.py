"""Memory that the calls of one device share, because they run one after another."""

from __future__ import annotations

import torch
from torch import Tensor

_BUFFERS: dict[tuple[torch.device, str], Tensor] = {}


def shared(name: str, num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """At least so many elements, the same memory for the same name; what is in them is what its
    last user left, zeros at first. Growing frees the old memory: a captured graph must have been
    run once with the largest sizes before."""
    held = _BUFFERS.get((device, name))
    if held is None or held.numel() < num_elements or held.dtype != dtype:
        held = _BUFFERS[device, name] = torch.zeros(num_elements, dtype=dtype, device=device)
    return held
