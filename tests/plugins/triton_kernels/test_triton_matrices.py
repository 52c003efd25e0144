"""Products of every format against fp64, and the promise that company changes no bit of a row."""

import pytest
import torch
from attrs import evolve

from ninfer_triton_kernels.bindings.host import gaps

FORMATS = (
    "bf16", "fp32", "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16",
    "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32", "nvfp4", "q4_1_g32_fp16",
)


def exact(weight, x):
    return x.double() @ weight.dense().double().T


def close(actual, expected):
    """Within the rounding of fp32 sums, and of bf16 results if that is what they are; the
    interpreter cuts those off instead of rounding them."""
    error = (actual.double() - expected).norm() / expected.norm()
    return bool(error < (1e-5 if actual.dtype == torch.float32 else 5e-3))  # NaN is not


@pytest.mark.parametrize("name", FORMATS)
def test_linear(name, make_weight, bind, randn, poisoned):
    """Ragged rows and columns, one token and more than one instruction takes."""
    weight = make_weight(name, 72, 160)
    linear, _ = bind("linear", weight=weight, bias=None)
    for num_tokens in (1, 11):
        x = randn(num_tokens, 200)[:, :160]
        out = poisoned(num_tokens, 80).float()
        assert close(linear(x, out[:, :72]), exact(weight, x))
        assert out[:, 72:].isnan().all()


@pytest.mark.parametrize("name", ["bf16", "q4_g64_fp16", "nvfp4", "q8_g32_fp16"])
def test_bias_residual_and_fp32_results(name, make_weight, bind, randn, device):
    weight, x, bias, rest = make_weight(name, 32, 64), randn(3, 64), randn(32), randn(3, 32)
    linear, _ = bind("linear", weight=weight, bias=bias)
    expected = exact(weight, x) + bias.double() + rest.double()
    stream = rest.clone()
    assert close(linear(x, stream, stream), expected)
    out = torch.full((3, 32), torch.nan, device=device)
    assert close(linear(x, out, rest), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_swiglu(name, make_weight, bind, randn, poisoned):
    weight, x = make_weight(name, 160, 64), randn(2, 64)
    swiglu, _ = bind("swiglu", weight=weight)
    gate, up = exact(weight, x).chunk(2, 1)
    assert close(swiglu(x, poisoned(2, 80)), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("name", FORMATS)
def test_many_rows(name, make_weight, bind, randn, poisoned):
    """More than read the weight at its own pace."""
    weight, x, rest = make_weight(name, 64, 192), randn(130, 192), randn(130, 64)
    linear, _ = bind("linear", weight=weight, bias=None)
    assert close(linear(x, rest.clone(), rest), exact(weight, x) + rest.double())
    swiglu, _ = bind("swiglu", weight=weight)
    gate, up = exact(weight, x).chunk(2, 1)
    actual = swiglu(x, poisoned(130, 32)).double()
    error = (actual - torch.nn.functional.silu(gate) * up).norm() / actual.norm()
    assert error < 2e-2  # gates and weights are rounded on the way


@pytest.mark.parametrize("name", FORMATS)
def test_company_changes_no_bit(name, make_weight, bind, randn, poisoned):
    weight, x = make_weight(name, 48, 128), randn(19, 128)
    linear, _ = bind("linear", weight=weight, bias=None)
    together = linear(x, poisoned(19, 48))
    for rows in (slice(0, 1), slice(3, 7), slice(18, 19)):
        alone = linear(x[rows], poisoned(len(x[rows]), 48))
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("layout, shape", [
    ("block_scale_k16_m128x4_v1", (128, 128)), ("block_scale_k16_plain_v1", (32, 48)),
])
def test_layouts_of_nvfp4(layout, shape, make_weight, bind, randn, poisoned):
    weight, x = make_weight("nvfp4", *shape, layout=layout), randn(2, shape[1])
    linear, _ = bind("linear", weight=weight, bias=None)
    assert close(linear(x, poisoned(2, shape[0])), exact(weight, x))


@pytest.mark.parametrize(("name", "layout", "shape"), [
    *((name, "", (40, 96)) for name in FORMATS), ("fp8_e4m3fn_g128_fp32", "", (40, 272)),
    ("nvfp4", "block_scale_k16_m128x4_v1", (256, 128)), ("nvfp4", "", (130, 160)),
])
def test_embedding(name, layout, shape, make_weight, bind, device, poisoned):
    weight, width = make_weight(name, *shape, layout=layout), shape[1]
    ids = torch.tensor([shape[0] - 1, 0, 7, 37], device=device)
    embedding, _ = bind("embedding", weight=weight)
    expected = weight.dense()[ids]
    if name == "q4_1_g32_fp16":
        expected = expected.bfloat16().float()  # held so
    out = poisoned(4, width + 4).float()
    assert torch.equal(embedding(ids, out[:, :width]), expected)
    assert out[:, width:].isnan().all()


@pytest.mark.parametrize(("known", "left"), [
    ([], [(4, 9)]), ([(0, 4), (9, 12)], [(4, 9)]), ([(0, 20)], []), ([(5, 6)], [(4, 5), (6, 9)]),
    ([(8, 20), (3, 5)], [(5, 8)]), ([(4, 6), (6, 9)], []),
])
def test_a_page_is_locked_once(known, left):
    assert gaps(4, 9, known) == left


@pytest.mark.parametrize(
    "name", ["bf16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32", "nvfp4", "q8_g32_fp16"])
def test_rows_of_a_table_in_host_memory(name, make_weight, bind, device, poisoned):
    weight, ids = make_weight(name, 40, 96), torch.tensor([39, 0, 7], device=device)
    on_host = evolve(weight, planes={part: each.cpu() for part, each in weight.planes.items()})
    embedding, _ = bind("embedding", weight=on_host)
    assert torch.equal(embedding(ids, poisoned(3, 96).float()), weight.dense()[ids])
