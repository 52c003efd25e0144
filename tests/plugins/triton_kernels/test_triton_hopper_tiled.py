"""Products of capability 90: what is laid out for them, and on such a card their bits."""

import pytest
import torch

from ninfer_triton_kernels.bindings import hopper_tiled
from ninfer_triton_kernels.bindings.descriptors import HOPPER
from ninfer_triton_kernels.bindings.launching import capability
from ninfer_triton_kernels.bindings.stored import stored_matrix
from ninfer_triton_kernels.kernels.arranged import arrange_tokens
from ninfer_triton_kernels.kernels.tiled import E4M3_INPUT

FORMATS = (
    "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "nvfp4", "fp8_e4m3fn_row_bf16")
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or capability(torch.device("cuda")) != HOPPER,
    reason="only capability 90 has the instruction")


def in_groups(x, tokens, wide):
    """``x`` as blocks of ``wide`` columns of ``tokens`` rows, zeros behind the last."""
    rows, depth = x.shape
    groups = -(-rows // tokens)
    whole = torch.zeros(groups * tokens, depth, dtype=torch.float64, device=x.device)
    whole[:rows] = x.double()
    return whole.view(groups, tokens, depth // wide, wide).transpose(1, 2)


@pytest.mark.parametrize("wide, e4m3, offset", [(64, False, 8), (64, False, 0), (32, True, 0)])
def test_activations_lie_as_the_instruction_takes_them(wide, e4m3, offset, randn, device):
    """Of each 32 columns, by plane, column half, lane and pair."""
    rows, depth, tokens = 19, 320, 16
    x = randn(rows, 400)[:, :depth]
    out = torch.full((2, depth // wide, tokens, wide), torch.nan, dtype=torch.bfloat16,
                     device=device)
    sums = torch.full((2, depth // wide, tokens), torch.nan, device=device)
    arrange_tokens[depth // wide, 2](
        x, out, sums, rows, x.stride(0), depth, wide, e4m3, offset, offset > 0, tokens)
    blocks = in_groups(x, tokens, wide)
    ordered = blocks.unflatten(3, (-1, 4, 2, 2, 2)).permute(0, 1, 2, 3, 5, 6, 4, 7).flatten(3)
    assert torch.equal(out.double(), ordered * (E4M3_INPUT.value if e4m3 else 1))
    if offset:
        expected = -(128 + offset) * blocks.sum(3)
        assert (sums.double() - expected).abs().max() < 1e-5 * expected.abs().max()
    else:
        assert sums.isnan().all()


@pytest.fixture
def small_card(monkeypatch):
    """One that a few programs fill."""
    monkeypatch.setattr(hopper_tiled, "num_processors", lambda device: 1)


@on_hopper
@pytest.mark.usefixtures("small_card")
@pytest.mark.parametrize("rows", [17, 32, 40])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_have_the_bits_that_they_have_alone(name, rows, make_weight, bind, randn, poisoned):
    """Ragged tiles, columns that programs share, bias and residual."""
    weight, x, bias = make_weight(name, 200, 1024), randn(rows, 1024), randn(200)
    assert hopper_tiled.takes(stored_matrix(weight), x)
    linear, _ = bind("linear", weight=weight, bias=bias)
    rest = randn(rows, 200, seed=4)
    together = linear(x, poisoned(rows, 200), rest)
    for row in (0, rows // 2, rows - 1):
        own = slice(row, row + 1)
        assert torch.equal(linear(x[own], poisoned(1, 200), rest[own]), together[own])
    exact = x.double() @ weight.dense().double().T + bias.double() + rest.double()
    assert (together.double() - exact).norm() < 5e-3 * exact.norm()


@on_hopper
@pytest.mark.usefixtures("small_card")
@pytest.mark.parametrize("limit", [0.0, 0.5])
@pytest.mark.parametrize("name", FORMATS)
def test_gated_rows_have_the_bits_that_they_have_alone(
    name, limit, make_weight, bind, randn, poisoned
):
    weight, x = make_weight(name, 288, 512), randn(24, 512)
    swiglu, _ = bind("swiglu", {"limit": limit}, weight=weight)
    together = swiglu(x, poisoned(24, 144))
    for row in (0, 11, 23):
        assert torch.equal(swiglu(x[row : row + 1], poisoned(1, 144)), together[row : row + 1])


@pytest.mark.usefixtures("small_card")
def test_what_has_other_sums_is_left_to_the_other_kernel(make_weight, randn, monkeypatch):
    monkeypatch.setattr(hopper_tiled, "capability", lambda device: HOPPER)
    x = randn(20, 1024)
    assert hopper_tiled.takes(stored_matrix(make_weight("nvfp4", 128, 1024)), x)
    assert not hopper_tiled.takes(stored_matrix(make_weight("nvfp4", 128, 1024)), x[:16])
    for name, depth in (("nvfp4", 1056), ("q4_1_g32_fp16", 1024), ("fp8_e4m3fn_g128_fp32", 1024)):
        assert not hopper_tiled.takes(stored_matrix(make_weight(name, 128, depth)), x[:, :depth])


def test_programs_must_fill_the_card(make_weight, randn, monkeypatch):
    monkeypatch.setattr(hopper_tiled, "capability", lambda device: HOPPER)
    matrix = stored_matrix(make_weight("nvfp4", 128, 1024))
    programs = 2 * matrix.tile.splits
    for processors, tokens, taken in ((programs // 2, 32, True), (programs, 32, False),
                                      (programs, 33, True)):
        monkeypatch.setattr(hopper_tiled, "num_processors", lambda device, n=processors: n)
        assert hopper_tiled.takes(matrix, randn(tokens, 1024)) == taken
