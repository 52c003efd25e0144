"""Matrix products against fp64, and the promise that company changes no bit of a row."""

import pytest
import torch
from torch.nn.functional import silu

from ninfer_profile_cpu.kernels.embedding import embedding_body
from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.linear import linear_body
from ninfer_profile_cpu.kernels.swiglu import swiglu_body
from ninfer_profile_cpu.kernels.weight_fields import BLOCK_ROWS

FORMATS = (
    "fp32", "bf16", "u4_g32_half_min", "s4_g64_pair", "s5_g64_pair", "s6_g64_pair", "s8_g32_pair",
    "fp8_row", "fp8_g128", "nvfp4_tiled", "nvfp4_rows",
)


def _address(tensor):
    return (0, 0) if tensor is None else (tensor.data_ptr(), 4 * tensor.stride(0))


@pytest.fixture
def run_linear(shared, poisoned):
    def run(weight, x, bias=None, residual=None, out=None):
        out = poisoned(x.shape[0], weight.values.shape[0]) if out is None else out
        launch(
            shared, linear_body(), -(-out.shape[1] // BLOCK_ROWS), 1, weight.address, *_address(x),
            x.shape[0], *_address(out), _address(bias)[0], *_address(residual),
        )
        return out

    return run


@pytest.fixture
def run_swiglu(shared, poisoned):
    def run(weight, x):
        out = poisoned(x.shape[0], weight.values.shape[0] // 2)
        launch(
            shared, swiglu_body(), -(-out.shape[1] // BLOCK_ROWS), 1, weight.address, *_address(x),
            x.shape[0], *_address(out), 0, 0, 0,
        )
        return out

    return run


def close_to_product(actual, weight, x):
    """Within the rounding of fp32 sums, which grows with the magnitudes that were added."""
    exact = x.double() @ weight.values.double().T
    magnitude = x.double().abs() @ weight.values.double().abs().T
    return bool(((actual - exact).abs() <= 1e-6 * magnitude).all())


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 7, 13])
def test_product_of_every_format(fmt, num_tokens, run_linear, random_weight, randn):
    weight, x = random_weight(fmt, 70, 192), randn(num_tokens, 192)
    assert close_to_product(run_linear(weight, x), weight, x)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 31, 32, 33, 65])
def test_every_number_of_rows(rows, run_linear, random_weight, randn):
    weight, x = random_weight("u4_g32_half_min", rows, 64), randn(2, 64)
    assert close_to_product(run_linear(weight, x), weight, x)


@pytest.mark.parametrize(
    "fmt",
    ["fp32", "bf16", "s4_g64_pair", "s6_g64_pair", "s8_g32_pair", "fp8_row", "fp8_g128"],
)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 63, 64, 65, 130])
def test_every_width(fmt, width, run_linear, random_weight, randn):
    """Rows that end inside a group and are stored padded to 128, or that end inside a step."""
    stored = -(-width // 128) * 128
    weight, beyond = random_weight(fmt, 9, width, stored), torch.full((3, 200), torch.nan)
    beyond[:, :width] = randn(3, width)  # reading past a row gives NaN
    for x in (beyond[:, :width], beyond[:1, :width], beyond.repeat(4, 1)[:, :width]):
        assert close_to_product(run_linear(weight, x), weight, x)


@pytest.mark.parametrize("fmt", FORMATS)
def test_bits_of_a_row_do_not_depend_on_the_others(fmt, run_linear, random_weight, randn):
    weight, x = random_weight(fmt, 36, 192), randn(16, 192)
    alone = torch.cat([run_linear(weight, x[t : t + 1]) for t in range(16)])
    for num_tokens in range(1, 17):
        assert torch.equal(run_linear(weight, x[:num_tokens]), alone[:num_tokens]), num_tokens
    assert torch.equal(run_linear(weight, x[5:].flip(0)), alone[5:].flip(0))


def test_bits_do_not_depend_on_threads(run_linear, random_weight, randn, one_thread):
    from ninfer_profile_cpu.kernels.pool import pool

    weight, x = random_weight("u4_g32_half_min", 500, 192), randn(9, 192)
    expected = run_linear(weight, x)
    for num_threads in (2, 3):
        pool().set_num_threads(num_threads)
        assert torch.equal(run_linear(weight, x), expected)


@pytest.mark.parametrize("num_tokens", [1, 10])
def test_bias_and_residual_are_added_last(num_tokens, run_linear, random_weight, randn):
    weight, x = random_weight("s8_g32_pair", 45, 96), randn(num_tokens, 96)
    bias, residual = randn(45, seed=2), randn(num_tokens, 45, seed=3)
    product = run_linear(weight, x)
    assert torch.equal(run_linear(weight, x, bias), product + bias)
    expected = product + bias + residual
    assert torch.equal(run_linear(weight, x, bias, residual), expected)
    assert torch.equal(run_linear(weight, x, bias, residual, out=residual), expected)


def test_rows_may_be_strided(run_linear, random_weight, randn, poisoned):
    weight, x, out = random_weight("fp32", 40, 48), randn(11, 100), poisoned(11, 90)
    run_linear(weight, x[:, 20:68], out=out[:, 10:50])
    assert close_to_product(out[:, 10:50], weight, x[:, 20:68])
    assert out[:, :10].isnan().all() and out[:, 50:].isnan().all()


@pytest.mark.parametrize("rows", [4, 32, 127, 128, 160, 300])
def test_tiles_of_scales(rows, run_linear, random_weight, randn):
    weight, x = random_weight("nvfp4_tiled", rows, 128), randn(3, 128)
    assert close_to_product(run_linear(weight, x), weight, x)


@pytest.mark.parametrize("width", [16, 48, 80])
def test_nvfp4_of_short_rows(width, run_linear, random_weight, randn):
    weight, x = random_weight("nvfp4_rows", 9, width), randn(3, width)
    assert close_to_product(run_linear(weight, x), weight, x)


@pytest.mark.parametrize("fmt", ["fp32", "u4_g32_half_min", "s4_g64_pair", "nvfp4_rows"])
@pytest.mark.parametrize("num_tokens", [1, 3, 12])
def test_swiglu(fmt, num_tokens, run_swiglu, random_weight, randn):
    weight, x = random_weight(fmt, 2 * 37, 128), randn(num_tokens, 128) / 8
    gate, up = (x.double() @ weight.values.double().T).split(37, dim=1)
    assert torch.allclose(run_swiglu(weight, x).double(), silu(gate) * up, rtol=1e-5, atol=1e-5)


def test_swiglu_of_large_gates(run_swiglu, random_weight, randn):
    weight = random_weight("fp32", 2, 16)
    x = torch.tensor([-300.0, -88.0, 0.0, 88.0, 300.0]).unsqueeze(1) * randn(1, 16)
    gate, up = (x.double() @ weight.values.double().T).split(1, dim=1)
    assert torch.allclose(run_swiglu(weight, x).double(), silu(gate) * up, rtol=1e-5, atol=1e-30)


def test_bits_of_swiglu_do_not_depend_on_company(run_swiglu, random_weight, randn):
    weight, x = random_weight("u4_g32_half_min", 2 * 40, 96), randn(12, 96)
    alone = torch.cat([run_swiglu(weight, x[t : t + 1]) for t in range(12)])
    for num_tokens in (2, 5, 8, 9, 12):
        assert torch.equal(run_swiglu(weight, x[:num_tokens]), alone[:num_tokens])


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("width", [64, 130])
def test_embedding_is_exact(fmt, width, shared, random_weight, poisoned):
    width = width // 64 * 64 if fmt.startswith("nvfp4") else width
    weight = random_weight(fmt, 20, width, -(-width // 128) * 128)
    ids = torch.tensor([19, 0, 7, 7, *range(20)])
    out = poisoned(len(ids), width + 3)
    launch(
        shared, embedding_body(), len(ids), 8, weight.address, ids.data_ptr(), *_address(out),
        0, 0, 0, 0, 0,
    )
    assert torch.equal(out[:, :width], weight.values[ids])
    assert out[:, width:].isnan().all()
