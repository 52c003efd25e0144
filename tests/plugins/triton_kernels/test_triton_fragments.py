"""Re-laying weights: by runs of rows as in one piece, and where each code must be."""

from functools import partial

import pytest
import torch

from ninfer_triton_kernels import fragments as module
from ninfer_triton_kernels.fragments import (
    affine_fragments,
    e4m3_fragments,
    in_runs,
    nvfp4_fragments,
)

BUILDERS = {
    "q4_g64_fp16": affine_fragments, "q5_g64_fp16": affine_fragments,
    "q8_g32_fp16": affine_fragments, "fp8_e4m3fn_row_bf16": e4m3_fragments,
    "fp8_e4m3fn_g128_fp32": e4m3_fragments, "nvfp4": nvfp4_fragments,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_runs_of_rows_give_what_the_whole_gives(name, make_weight, monkeypatch):
    weight, build = make_weight(name, 384, 128), BUILDERS[name]
    if weight.info.format.structure:
        build = partial(build, structure=weight.info.format.structure)
    whole = build(weight)
    monkeypatch.setattr(module, "RUN_ELEMENTS", 20_000)
    runs = in_runs(weight, build)
    for part in ("codes", "high", "scales", "divisor"):
        one, other = getattr(runs, part), getattr(whole, part)
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("shape, runs", [
    ((128, 64), 1), ((1 << 14, 5120), 4), ((34816, 5120), 8), ((5120, 17408), 4),
    ((100, 1 << 20), 1), ((256, 1024, 2048), 16), ((248320, 5120), 97),
])
def test_large_weights_are_cut(shape, runs):
    assert module._num_runs(shape) == runs


def test_a_bank_is_cut_between_its_matrices(make_weight, monkeypatch):
    weight = make_weight("nvfp4", 4, 32, 64)
    whole = nvfp4_fragments(weight)
    monkeypatch.setattr(module, "RUN_ELEMENTS", 4096)
    assert torch.equal(in_runs(weight, nvfp4_fragments).codes, whole.codes)


def test_lanes_hold_what_the_instruction_takes(make_weight):
    """The first operand of m16n8k16: lane 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1
    and those 8 on; a 16-bit element has columns i, 16 + i, 32 + i and 48 + i."""
    weight = make_weight("q4_g64_fp16", 32, 128)
    stored = affine_fragments(weight, weight.info.format.structure)
    codes = weight.layout.unpack("q4_g64_fp16", (32, 128), weight.planes)["codes"].cpu()
    elements = stored.codes.cpu().int() & 0xFFFF
    for tile, block, lane, place in ((0, 0, 0, 0), (1, 1, 31, 7), (1, 0, 13, 2), (0, 1, 6, 5)):
        g, t = divmod(lane, 4)
        column_half, row_half, pair = place >> 2, place >> 1 & 1, place & 1
        row, column = 16 * tile + 8 * row_half + g, 64 * block + 8 * column_half + 2 * t + pair
        element = int(elements[tile, block, 8 * lane + place])
        found = [(element >> 4 * j & 15) - 8 for j in range(4)]
        assert found == [int(codes[row, column + 16 * j]) for j in range(4)]
