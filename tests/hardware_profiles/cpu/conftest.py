"""Helpers of the CPU kernels' tests: random stored weights with their values, worked out apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attrs import frozen
from torch import Tensor

pytest.importorskip("numba")

FORMATS = {  # decoder: (signed, bits, group, order, minimum)
    "u4_g32_half_min": (False, 4, 32, "half", True),
    "s4_g64_pair": (True, 4, 64, "pair", False),
    "s5_g64_pair": (True, 5, 64, "pair", False),
    "s6_g64_pair": (True, 6, 64, "pair", False),
    "s8_g32_pair": (True, 8, 32, "pair", False),
}

@frozen(eq=False)
class Stored:
    """A random weight: its values, what a kernel needs, and what keeps that alive."""

    fmt: str
    values: Tensor  # fp32 [N, K]
    block: np.ndarray
    planes: tuple[Tensor, ...]

    @property
    def address(self) -> int:
        return self.block.ctypes.data


def _pack_words(words: list[list[int]], bits: int) -> Tensor:
    """Little-endian bit strings, written out one bit at a time."""
    rows = []
    for row in words:
        text = "".join(f"{word:0{bits}b}"[::-1] for word in row)
        rows.append([int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8)])
    return torch.tensor(rows, dtype=torch.uint8)


def _half_order(words: list[list[int]]) -> list[list[int]]:
    """Words so that packing neighbours puts elements j and j + 16 of 32 into one byte."""
    groups = range(0, len(words[0]), 32)
    order = [start + 16 * half + j for start in groups for j in range(16) for half in (0, 1)]
    return [[row[i] for i in order] for row in words]


def _random_weight(fmt: str, rows: int, width: int, stored_width: int = 0, seed: int = 0) -> Stored:
    """``stored_width``: elements that a quantised row has in memory (zeros behind ``width``)."""
    from ninfer_profile_cpu.kernels.weight_block import weight_block

    generator = torch.Generator().manual_seed(seed)
    if fmt in ("fp32", "bf16"):
        values = torch.randn(rows, width, generator=generator)
        codes = values if fmt == "fp32" else values.bfloat16()
        block = weight_block(fmt, (codes.data_ptr(), 0, 0, 0), rows, width)
        return Stored(fmt, codes.float(), block, (codes,))
    signed, bits, group, order, has_minimum = FORMATS[fmt]
    padded = max(stored_width, -(-width // group) * group)
    low = -(1 << bits - 1) if signed else 0
    codes = torch.randint(low, low + (1 << bits), (rows, padded), generator=generator)
    codes[:, width:] = 0
    scales = (torch.rand(rows, padded // group, generator=generator) * 0.1 + 0.01).half()
    minimums = torch.randn(rows, padded // group, generator=generator).half() * has_minimum
    values = codes.float().unflatten(1, (-1, group)) * scales.float().unsqueeze(-1)
    values = (values + minimums.float().unsqueeze(-1)).flatten(1)[:, :width].contiguous()
    words = (codes & ((1 << bits) - 1)).tolist()
    if bits == 8:
        planes = [_pack_words(words, 8), None, scales, None]
    else:
        low_words = [[w & 15 for w in row] for row in words]
        packed = _pack_words(_half_order(low_words) if order == "half" else low_words, 4)
        high = _pack_words([[w >> 4 for w in row] for row in words], bits - 4) if bits > 4 else None
        planes = [packed, high, scales, minimums if has_minimum else None]
    addresses = [0 if p is None else p.data_ptr() for p in planes]
    block = weight_block(fmt, addresses, rows, width, padded // group)
    return Stored(fmt, values, block, tuple(p for p in planes if p is not None))


@pytest.fixture
def random_weight() -> Callable[..., Stored]:
    return _random_weight


@pytest.fixture
def randn() -> Callable[..., Tensor]:
    def randn(*shape: int, seed: int = 1) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    return randn


@pytest.fixture
def poisoned() -> Callable[..., Tensor]:
    return lambda *shape: torch.full(shape, torch.nan)


@pytest.fixture(scope="session")
def shared() -> int:
    """Address of the pool, with room for what the tests do."""
    from ninfer_profile_cpu.kernels.pool import pool

    pool().reserve(4 << 20)
    return pool().address


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run a test on one thread."""
    from ninfer_profile_cpu.kernels.pool import pool

    before = pool().num_threads
    pool().set_num_threads(1)
    yield
    pool().set_num_threads(before)
