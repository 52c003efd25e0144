"""What products do with their results."""

import pytest
import torch
import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.products import sum_batch


@triton.jit
def sum_kernel(parts, out, S: tl.constexpr, BN: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, BN)[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.load(parts + tl.arange(0, S)[:, None, None] * (BN * N) + at[None, :, :])
    tl.store(out + at, sum_batch(total))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_batch_is_summed_by_halves(size, device):
    """To the bit: kernels for some cards have to repeat it."""
    generator = torch.Generator().manual_seed(size)
    parts = torch.randn(size, 32, 8, generator=generator).to(device)
    out = torch.empty(32, 8, device=device)
    sum_kernel[1,](parts, out, size, 32, 8)
    while len(parts) > 1:
        one, two = parts.chunk(2)
        parts = one + two
    assert torch.equal(out, parts[0])
