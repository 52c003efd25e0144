"""References of the ops on dense rows: values against FP64, bits against company."""

import pytest
import torch

from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.embedding import reference as embedding
from ninfer_core.ops.linear import reference as linear
from ninfer_core.ops.rmsnorm import reference as rmsnorm
from ninfer_core.ops.swiglu import reference as swiglu

FORMATS = [
    ("fp32", "contiguous_le_v1"), ("bf16", "contiguous_le_v1"),
    ("q4_g64_fp16", "row_split_k128_v1"), ("q8_g32_fp16", "row_split_k128_v1"),
]


@pytest.fixture
def values():
    return torch.randn(48, 160, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def x():
    return torch.randn(33, 160, generator=torch.Generator().manual_seed(2))


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, torch.nan, dtype=dtype)


@pytest.mark.parametrize(("format", "layout"), FORMATS)
def test_linear_is_the_product_with_the_decoded_weight(
    format, layout, values, x, make_weight, make_request
):
    weight = make_weight(values, format, layout)
    out = linear.bind(make_request("linear"), weight, None)(x, poisoned(33, 48))
    assert torch.allclose(out.double(), x.double() @ weight.dense().double().T, atol=1e-4)


def test_linear_adds_bias_and_residual_last_and_in_place(values, x, make_weight, make_request):
    bias = torch.arange(48.0)
    product = linear.bind(make_request("linear"), make_weight(values), bias)
    stream = torch.randn(33, 48)
    expected = x.double() @ values.double().T + bias.double() + stream.double()
    out = product(x, stream, stream)
    assert out is stream
    assert torch.allclose(stream.double(), expected, atol=1e-4)


@pytest.mark.parametrize("adds", [False, True])
def test_linear_group_has_each_product_in_its_columns(adds, values, x, make_weight, make_request):
    weights = make_weight(values), make_weight(values[:20], "q8_g32_fp16", "row_split_k128_v1")
    group = linear.bind_group(make_request("linear_group"), weights, (None, torch.arange(20.0)))
    rest = torch.randn(33, 68) if adds else None
    expected = torch.cat([x.double() @ each.dense().double().T for each in weights], dim=1)
    expected[:, 48:] += torch.arange(20.0)
    expected += rest.double() if adds else 0
    out = poisoned(33, 70)
    assert torch.allclose(group(x, out[:, :68], rest).double(), expected, atol=1e-4)
    assert out[:, 68:].isnan().all()


def test_linear_takes_strided_rows_and_bf16(values, x, make_weight, make_request):
    product = linear.bind(make_request("linear"), make_weight(values), None)
    wide = torch.cat((x, x), dim=1).bfloat16()
    out = product(wide[:, 160:], poisoned(33, 100, dtype=torch.bfloat16)[:, 7:55])
    expected = (wide[:, :160].double() @ values.double().T).bfloat16()
    assert torch.allclose(out.float(), expected.float(), rtol=2**-7)


def test_swiglu_gates_with_the_upper_rows(values, x, make_weight, make_request):
    out = swiglu.bind(make_request("swiglu"), make_weight(values))(x, poisoned(33, 24))
    gate, up = (x.double() @ values.double().T).chunk(2, dim=1)
    assert torch.allclose(out.double(), torch.nn.functional.silu(gate) * up, atol=1e-4)


def test_swiglu_clamps_gates_from_above_and_products_on_both_sides(
    values, x, make_weight, make_request
):
    request = make_request("swiglu", sizes={"limit": 2.0})
    out = swiglu.bind(request, make_weight(values))(x, poisoned(33, 24))
    gate, up = (x.double() @ values.double().T).chunk(2, dim=1)
    assert gate.min() < -4 and gate.max() > 4 and up.abs().max() > 4
    expected = torch.nn.functional.silu(gate.clamp(max=2.0)) * up.clamp(-2.0, 2.0)
    assert torch.allclose(out.double(), expected, atol=1e-4)


@pytest.mark.parametrize("offset", [False, True])
def test_rmsnorm_formula_in_place(offset, x, make_request):
    weight = torch.randn(160)
    request = make_request("rmsnorm", sizes={"eps": 0.5, "unit_offset": offset})
    doubled = x.double()
    scale = weight.double() + offset
    expected = doubled / (doubled.square().mean(1, keepdim=True) + 0.5).sqrt() * scale
    stream = x.clone()
    assert rmsnorm.bind(request, weight)(stream, stream) is stream
    assert torch.allclose(stream.double(), expected, atol=1e-5)


@pytest.mark.parametrize(("format", "layout"), FORMATS)
def test_embedding_gathers_exactly(format, layout, values, make_weight, make_request):
    weight = make_weight(values, format, layout)
    gather = embedding.bind(make_request("embedding"), weight)
    ids = torch.tensor([47, 0, 3, 3])
    assert gather(ids, poisoned(4, 160)).equal(weight.dense()[ids])
    half = gather(ids, poisoned(4, 160, dtype=torch.bfloat16))
    assert half.equal(weight.dense()[ids].bfloat16())


def test_embedding_makes_no_more_rows_dense_than_it_gives(
    values, make_weight, make_request, monkeypatch
):
    weight, shapes = make_weight(values, "q4_g64_fp16", "row_split_k128_v1"), []
    expected, dense = weight.dense(), Weight.dense
    monkeypatch.setattr(Weight, "dense", lambda w: (shapes.append(w.info.shape), dense(w))[1])
    gather = embedding.bind(make_request("embedding"), weight)
    assert gather(torch.tensor([40, 7]), poisoned(2, 160)).equal(expected[[40, 7]])
    assert shapes == [(1, 160)] * 2


def test_embedding_of_rows_in_tiles(make_weight, make_request):
    codes = torch.randint(0, 16, (128, 64), dtype=torch.uint8)
    scales = torch.randint(1, 127, (128, 4), dtype=torch.uint8).view(torch.float8_e4m3fn)
    parts = {"codes": codes, "scales": scales, "divisor": torch.tensor(2.0)}
    weight = make_weight(parts, "nvfp4", "block_scale_k16_m128x4_v1")
    gather = embedding.bind(make_request("embedding"), weight)
    assert gather(torch.tensor([127, 0]), poisoned(2, 64)).equal(weight.dense()[[127, 0]])


def test_embedding_refuses_an_id_outside_the_table(values, make_weight, make_request):
    gather = embedding.bind(make_request("embedding"), make_weight(values))
    with pytest.raises(IndexError):
        gather(torch.tensor([48]), poisoned(1, 160))
    with pytest.raises(IndexError):
        gather(torch.tensor([-1]), poisoned(1, 160))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 32])
def test_bits_of_a_row_do_not_depend_on_its_company(count, values, x, make_weight, make_request):
    """Also with rows at every alignment, since the rows move through the batch."""
    norm = make_request("rmsnorm", sizes={"eps": 1e-5, "unit_offset": False})
    ops = [
        (linear.bind(make_request("linear"), make_weight(values), torch.ones(48)), 48),
        (swiglu.bind(make_request("swiglu"), make_weight(values)), 24),
        (rmsnorm.bind(norm, torch.randn(160)), 160),
    ]
    for op, width in ops:
        together = op(x, poisoned(33, width))
        for start in range(0, 33, count):
            part = x[start : start + count]
            alone = op(part, poisoned(part.shape[0], width))
            assert alone.equal(together[start : start + count])
