"""Re-laying weights: by runs of rows as in one piece, where each code must be, and the layout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.plugin_host.builtin import ninfer_weight_formats
from ninfer_triton_kernels import fragments as module
from ninfer_triton_kernels.fragments import fragments_of
from ninfer_triton_kernels.layouts import FragmentsLayout

FORMATS = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16",
           "fp8_e4m3fn_g128_fp32", "nvfp4")
SPECS = {spec.name: spec for spec in ninfer_weight_formats()}


@pytest.mark.parametrize("name", FORMATS)
def test_runs_of_rows_give_what_the_whole_gives(name, make_weight, monkeypatch):
    weight = make_weight(name, 384, 128)
    whole = fragments_of(weight)
    monkeypatch.setattr(module, "RUN_ELEMENTS", 20_000)
    runs = fragments_of(weight)
    for part in ("codes", "high", "scales", "divisor"):
        one, other = getattr(runs, part), getattr(whole, part)
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_matrix_is_taken_as_it_is(name, make_weight):
    weight, stored = (
        make_weight(name, 48, 192, layout=layout) for layout in ("", "fragments_m16_v1"))
    made, taken = fragments_of(weight), fragments_of(stored)
    assert taken.codes.data_ptr() == stored.planes["codes"].data_ptr()
    for part in ("codes", "high", "scales", "divisor"):
        one, other = getattr(taken, part), getattr(made, part)
        assert (one is None and other is None) or torch.equal(one, other)
    assert torch.equal(weight.dense(), stored.dense())
    assert torch.equal(weight.dense()[16:32], stored.part(1, 3).dense())


def random_parts(name, shape, seed):
    """Parts of any bits that the format has; NVFP4 without codes under a scale of 0."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low, high, *sizes):
        return torch.randint(low, high, sizes, generator=generator)

    structure = SPECS[name].structure
    *bank, rows, columns = shape
    if structure:
        half = 1 << structure.bits - 1
        scales = torch.rand(rows, -(-columns // structure.group), generator=generator)
        return {"codes": integers(-half, half, *shape).to(torch.int8), "scales": scales.half()}
    if name == "nvfp4":
        scales = integers(0, 127, *shape[:-1], columns // 16).to(torch.uint8)
        codes = integers(0, 16, *shape).to(torch.uint8)
        codes *= (scales > 0).repeat_interleave(16, -1)
        return {"codes": codes, "scales": scales.view(torch.float8_e4m3fn),
                "divisor": torch.rand(bank, generator=generator)}
    codes = integers(0, 256, *shape).to(torch.uint8).view(torch.float8_e4m3fn)
    if name.endswith("row_bf16"):
        return {"codes": codes, "scales": torch.rand(rows, generator=generator).bfloat16()}
    return {"codes": codes, "scales": torch.rand(rows, -(-columns // 128), generator=generator)}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(FORMATS), tiles=st.integers(1, 4), columns=st.integers(1, 300),
       bank=st.integers(0, 3), seed=st.integers(0, 99))
def test_the_layout_gives_back_what_it_was_given(name, tiles, columns, bank, seed):
    if name == "nvfp4":
        columns = -(-columns // 16) * 16
    shape = (*([bank] if bank and name == "nvfp4" else []), 16 * tiles, columns)
    layout, parts = FragmentsLayout(), random_parts(name, shape, seed)
    image = layout.pack(name, parts)
    assert image.numel() == layout.nbytes(name, shape)
    planes = {info.name: plane_view(image, info) for info in layout.planes(name, shape)}
    again = layout.unpack(name, shape, planes)
    assert again.keys() == parts.keys()
    for each, part in parts.items():
        assert again[each].dtype == part.dtype and again[each].shape == part.shape
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[part.itemsize]
        assert torch.equal(again[each].contiguous().view(kind), part.contiguous().view(kind)), each


@pytest.mark.parametrize("name, shape", [
    ("q4_g64_fp16", (24, 64)), ("q8_g32_fp16", (2, 16, 64)), ("nvfp4", (2, 8, 64)),
])
def test_rows_that_are_no_tiles_are_refused(name, shape):
    with pytest.raises(ArtifactError, match="N a multiple of 16"):
        FragmentsLayout().nbytes(name, shape)


@pytest.mark.parametrize("shape, runs", [
    ((128, 64), 1), ((1 << 14, 5120), 4), ((34816, 5120), 8), ((5120, 17408), 4),
    ((100, 1 << 20), 1), ((256, 1024, 2048), 16), ((248320, 5120), 97),
])
def test_large_weights_are_cut(shape, runs):
    assert module._num_runs(shape) == runs


def test_a_bank_is_cut_between_its_matrices(make_weight, monkeypatch):
    weight = make_weight("nvfp4", 4, 32, 64)
    whole = fragments_of(weight)
    monkeypatch.setattr(module, "RUN_ELEMENTS", 4096)
    runs = fragments_of(weight)
    assert torch.equal(runs.codes, whole.codes) and torch.equal(runs.divisor, whole.divisor)


def test_lanes_hold_what_the_instruction_takes(make_weight):
    """Lane 4 g + t has rows g and g + 8, and of each 32 columns the 8 from 8 t on: four of one
    plane, then four of the next."""
    weight = make_weight("q4_g64_fp16", 32, 128)
    stored = fragments_of(weight)
    codes = weight.layout.unpack("q4_g64_fp16", (32, 128), weight.planes)["codes"].cpu()
    elements = stored.codes.cpu().int() & 0xFFFF
    for tile, block, lane, place in ((0, 0, 0, 0), (1, 1, 31, 7), (1, 0, 13, 2), (0, 1, 6, 5)):
        g, t = divmod(lane, 4)
        column_half, row_half, pair = place >> 2, place >> 1 & 1, place & 1
        row, column = 16 * tile + 8 * row_half + g, 64 * block + 8 * t + 2 * column_half + pair
        element = int(elements[tile, block, 8 * lane + place])
        found = [(element >> 4 * j & 15) - 8 for j in range(4)]
        assert found == [int(codes[row, column + on]) for on in (0, 4, 32, 36)]
