"""Memory that the calls of one device share, because they run one after another."""

from __future__ import annotations

import torch
from torch import Tensor

Key = tuple[torch.device, str]

_BUFFERS: dict[Key, Tensor] = {}
_CAPTURED: dict[Key, list[Tensor]] = {}
"""What graphs use for as long as the process lives: larger calls later get other memory."""


def shared(name: str, num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """At least so many elements, the same memory for the same name unless more are needed than
    before; what is in them is what its last user left, zeros at first."""
    key = device, name
    held = _BUFFERS.get(key)
    if held is None or held.numel() < num_elements or held.dtype != dtype:
        held = _BUFFERS[key] = torch.zeros(num_elements, dtype=dtype, device=device)
    if _is_capturing(device):
        kept = _CAPTURED.setdefault(key, [])
        if not any(each is held for each in kept):
            kept.append(held)
    return held


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
