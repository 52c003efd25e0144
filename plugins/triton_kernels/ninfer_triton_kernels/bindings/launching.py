"""Sizes of launches."""

from __future__ import annotations

from functools import cache
from math import inf

import torch
import triton
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_triton_kernels.kernels.products import INTERPRETED

IS_INTERPRETED = bool(INTERPRETED.value)

OVERLAPPED: dict[str, bool] = {} if IS_INTERPRETED else {"launch_pdl": True}
"""Options of launching a kernel that waits by itself, as of `kernels.overlap`."""


def power(count: int, least: int = 16) -> int:
    """The power of two that is not below ``count`` and ``least``."""
    return max(least, triton.next_power_of_2(count))


def or_other(given: Tensor | None, placeholder: Tensor) -> Tensor:
    """A pointer that a kernel takes and does not read, where there is no tensor."""
    return placeholder if given is None else given


def limit_of(request: KernelRequest) -> float:
    """Of gated products; infinite if there is none."""
    return request.sizes.get("limit") or inf


@cache
def num_processors(device: torch.device) -> int:
    """Multiprocessors of a card; of the interpreter, one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def capability(device: torch.device) -> int:
    """Compute capability as major * 10 + minor; of the interpreter, 0."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
