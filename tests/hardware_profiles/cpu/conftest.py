"""Helpers of the CPU kernels' tests: random stored weights with their values, worked out apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attrs import frozen
from torch import Tensor

pytest.importorskip("numba")

AFFINE = {  # decoder: (signed, bits, group, order, minimum)
    "u4_g32_half_min": (False, 4, 32, "half", True),
    "s4_g64_pair": (True, 4, 64, "pair", False),
    "s5_g64_pair": (True, 5, 64, "pair", False),
    "s6_g64_pair": (True, 6, 64, "pair", False),
    "s8_g32_pair": (True, 8, 32, "pair", False),
}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


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
    """``stored_width``: elements that a quantised row has in memory (zeros behind ``width``), if
    the format pads rows."""
    from ninfer_profile_cpu.kernels.planes import Planes
    from ninfer_profile_cpu.kernels.weight_block import weight_block

    generator = torch.Generator().manual_seed(seed)
    make = _random_affine if fmt in AFFINE else MAKERS[fmt]
    values, planes, row_steps = make(fmt, rows, width, stored_width, generator)
    addresses = Planes(**{name: plane.data_ptr() for name, plane in planes.items()})
    block = weight_block(fmt, addresses, rows, width, row_steps)
    return Stored(fmt, values, block, tuple(planes.values()))


def _random_dense(fmt, rows, width, stored_width, generator):
    values = torch.randn(rows, width, generator=generator)
    codes = values if fmt == "fp32" else values.bfloat16()
    return codes.float(), {"codes": codes}, 0


def _random_affine(fmt, rows, width, stored_width, generator):
    signed, bits, group, order, has_minimum = AFFINE[fmt]
    padded = max(stored_width, -(-width // group) * group)
    low = -(1 << bits - 1) if signed else 0
    codes = torch.randint(low, low + (1 << bits), (rows, padded), generator=generator)
    codes[:, width:] = 0
    scales = (torch.rand(rows, padded // group, generator=generator) * 0.1 + 0.01).half()
    minimums = torch.randn(rows, padded // group, generator=generator).half() * has_minimum
    values = codes.float().unflatten(1, (-1, group)) * scales.float().unsqueeze(-1)
    values = (values + minimums.float().unsqueeze(-1)).flatten(1)[:, :width].contiguous()
    words = (codes & ((1 << bits) - 1)).tolist()
    planes = {"scales": scales, "minimums": minimums} if has_minimum else {"scales": scales}
    if bits == 8:
        planes["codes"] = _pack_words(words, 8)
    else:
        low_words = [[w & 15 for w in row] for row in words]
        planes["codes"] = _pack_words(_half_order(low_words) if order == "half" else low_words, 4)
    if 4 < bits < 8:
        planes["high"] = _pack_words([[w >> 4 for w in row] for row in words], bits - 4)
    return values, planes, padded // group


def _random_fp8(fmt, rows, width, stored_width, generator):
    """Every code there is, subnormal ones and negative zeros among them."""
    words = torch.randint(0, 256, (rows, width), generator=generator, dtype=torch.uint8)
    codes = words.masked_fill_(words & 127 == 127, 128).view(torch.float8_e4m3fn)
    group = 128 if fmt == "fp8_g128" else width
    scales = torch.rand(rows, -(-width // group), generator=generator) * 0.1 + 0.01
    values = codes.float() * scales.repeat_interleave(group, 1)[:, :width]
    return values, {"codes": codes, "scales": scales}, 0


def _random_nvfp4(fmt, rows, width, stored_width, generator):
    words = torch.randint(0, 16, (rows, width), generator=generator)
    scales = torch.randint(0, 127, (rows, width // 16), generator=generator, dtype=torch.uint8)
    divisor = 1000 + torch.rand((), generator=generator)
    table = torch.full((256, 16), torch.nan)
    table[:127] = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()[:, None]
    table *= torch.tensor(E2M1)
    table /= divisor
    values = table[scales.int().repeat_interleave(16, 1), words]
    planes = {"codes": _pack_words(words.tolist(), 4), "scales": scales, "table": table}
    if fmt == "nvfp4_tiled":
        planes["scales"] = _tiled(scales.tolist(), -(-rows // 128) * 128)
    return values, planes, 0


def _tiled(scales: list[list[int]], padded_rows: int) -> Tensor:
    """Row ``128 a + 32 c + b`` and scale ``4 t + d`` to ``[a, t, b, c, d]``."""
    tiles = torch.full((padded_rows // 128, len(scales[0]) // 4, 32, 4, 4), 127, dtype=torch.uint8)
    for n, row in enumerate(scales):
        for k, scale in enumerate(row):
            tiles[n // 128, k // 4, n % 32, n % 128 // 32, k % 4] = scale
    return tiles


MAKERS = {
    "fp32": _random_dense, "bf16": _random_dense, "fp8_row": _random_fp8, "fp8_g128": _random_fp8,
    "nvfp4_tiled": _random_nvfp4, "nvfp4_rows": _random_nvfp4,
}


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
