"""Products in FP4 by FP4: what is quantised and how well, and the instruction on Blackwell.

The interpreter gets fp32 in the place of the instruction, whose scales it does not know; that the
instruction is there, is seen in the assembly.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact.formats.minifloat import E2M1_MAGNITUDES
from ninfer_triton_kernels.bindings import block_scaled as bindings
from ninfer_triton_kernels.kernels import block_scaled

VALUES = torch.tensor([*E2M1_MAGNITUDES, *(-each for each in E2M1_MAGNITUDES)])
on_card = pytest.mark.skipif(torch.cuda.is_available(), reason="the instruction is Blackwell's")


def decoded(codes, scales, factors):
    pairs = torch.stack((codes & 15, codes >> 4), -1).flatten(1)
    groups = VALUES[pairs.long()].unflatten(1, (-1, 16)) * scales.float().unsqueeze(-1)
    return groups.flatten(1) * factors.unsqueeze(1)


@on_card
@pytest.mark.parametrize("columns", [16, 272, 1024])
def test_activations_are_rounded_to_the_nearest(columns, randn):
    x = randn(5, columns + 16)[:, :columns]
    x[1], x[2, :16] = 0, 200
    codes = torch.full((5, columns // 2), 255, dtype=torch.uint8)
    scales = torch.full((5, columns // 16), torch.nan).to(torch.float8_e4m3fn)
    factors = torch.full((5,), torch.nan)
    block_scaled.quantise_rows[5,](x, codes, scales, factors, columns, x.stride(0), 256)
    found = decoded(codes, scales, factors)
    assert not found[1].any() and factors[1] == 1
    for row, own in zip(found, x.float(), strict=True):
        largest = own.unflatten(0, (-1, 16)).abs().amax(1).repeat_interleave(16)
        # half of the widest step, 4 to 6, of a scale that may be rounded by a sixteenth
        assert bool(((row - own).abs() <= largest * (1 / 6) * 1.07 + 1e-6).all())
    error = (found[0] - x[0].float()).norm() / x[0].float().norm()
    assert 0.02 < error < 0.13


@pytest.fixture
def few_tokens(monkeypatch):
    """So that few rows are many, whose programs the interpreter runs one by one."""
    monkeypatch.setattr(bindings, "FEW_TOKENS", 3)


@on_card
@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("rows, columns, tokens", [(48, 272, 4), (64, 128, 33)])
def test_products_differ_by_the_activations_rounding_alone(
    rows, columns, tokens, bind, make_weight, randn, poisoned
):
    weight = make_weight("nvfp4", rows, columns, layout="fragments_m16_v1")
    linear, _ = bind("linear", name="triton.linear_block_scaled", weight=weight, bias=None)
    x, stream = randn(tokens, columns), randn(tokens, rows, seed=4)
    out = linear(x, poisoned(tokens, rows)).double()
    exact = x.double() @ weight.dense().double().T
    error = (out - exact).norm() / exact.norm()
    assert 0.01 < error < 0.13
    added = linear(x, stream.clone(), stream).double() - stream.double()
    assert (added - out).abs().max() < 0.05 + 0.01 * out.abs().max()
    codes, scales, factors = (
        torch.empty(tokens, columns // 2, dtype=torch.uint8),
        torch.empty(tokens, columns // 16, dtype=torch.float8_e4m3fn), torch.empty(tokens))
    block_scaled.quantise_rows[tokens,](x, codes, scales, factors, columns, x.stride(0), 256)
    rounded = decoded(codes, scales, factors).double() @ weight.dense().double().T
    assert (out - rounded).norm() < 0.006 * rounded.norm()


@on_card
@pytest.mark.usefixtures("few_tokens")
def test_a_gated_product_and_few_tokens(bind, make_weight, randn, poisoned):
    weight = make_weight("nvfp4", 64, 64, layout="fragments_m16_v1")
    name = "triton.swiglu_block_scaled"
    swiglu, reference = bind("swiglu", {"limit": 0.0}, name=name, weight=weight)
    x = randn(5, 64)
    out, expected = swiglu(x, poisoned(5, 32)), reference(x, poisoned(5, 32))
    assert (out.double() - expected.double()).norm() < 0.2 * expected.double().norm()
    plain, _ = bind("swiglu", {"limit": 0.0}, weight=weight)
    assert torch.equal(swiglu(x[:3], poisoned(3, 32)), plain(x[:3], poisoned(3, 32)))


def test_the_instruction_is_native_on_the_5090():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = str(Path(__file__).with_name("compile_only.py"))
    run = subprocess.run([sys.executable, script, "120", "nvfp4-block-scaled"], env=environment,
                         check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    kernels = {each["kernel"]: each for each in map(json.loads, run.stdout.splitlines())}
    product = kernels["block_scaled_product"]
    assert product["spills"] == 0 and product["shared"] <= 99 << 10
    [instruction] = product["instructions"]
    assert "kind::mxf4nvf4.block_scale.scale_vec::4X" in instruction
    assert instruction.endswith("e2m1.e2m1.f32.ue4m3")
