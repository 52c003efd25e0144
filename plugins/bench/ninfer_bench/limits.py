"""Rates that products of large matrices reach now, by the libraries' own kernels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ninfer_bench.stepping import timed
from ninfer_core.config import EnginePlan

SIZES = {"cuda": 8192}
"""Rows and columns of the matrices, by device; a CPU's are smaller."""

SIZE = 512
FP8 = "float8_e4m3fn"


def matrix_rates(plan: EnginePlan) -> dict[str, float]:
    """FLOP/s by type of the activations: the plan's, and on a GPU E4M3 summed in fp32."""
    device = plan.hardware.device
    size = SIZES.get(device, SIZE)
    one, two = (torch.randn(size, size, device=device) for _ in range(2))
    dtype = getattr(torch, plan.hardware.compute_dtype)
    calls = {plan.hardware.compute_dtype: partial(torch.mm, one.to(dtype), two.to(dtype).T)}
    if device == "cuda" and plan.hardware.capability >= 89:
        calls[FP8] = _fp8_product(one, two)
    return {name: 2 * size**3 / timed(plan, call) for name, call in calls.items()}


def _fp8_product(one: Tensor, two: Tensor) -> partial[Tensor]:
    scale = torch.ones((), device=one.device)
    codes = one.to(torch.float8_e4m3fn), two.to(torch.float8_e4m3fn).T
    return partial(torch._scaled_mm, *codes, scale_a=scale, scale_b=scale,
                   out_dtype=torch.bfloat16, use_fast_accum=True)
