"""Products of every format against fp64, and the promise that company changes no bit of a row."""

import weakref

import pytest
import torch
from attrs import evolve

from ninfer_core.api import UnsupportedError
from ninfer_triton_kernels.bindings import host
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
    """Ragged rows and columns; one token, and more than one instruction or two take."""
    weight = make_weight(name, 72, 160)
    linear, _ = bind("linear", weight=weight, bias=None)
    for num_tokens in (1, 11, 20):
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


@pytest.mark.parametrize("name", ["bf16", "q8_g32_fp16"])
def test_many_rows_by_way_of_whole_columns(name, make_weight, bind, randn, poisoned):
    weight, x = make_weight(name, 21, 64), randn(130, 80)[:, :64]
    linear, _ = bind("linear", weight=weight, bias=None)
    for _ in range(2):
        out = poisoned(130, 30)
        assert close(linear(x, out[:, :21]), exact(weight, x))
        assert out[:, 21:].isnan().all()


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


def on_host(weight):
    return evolve(weight, planes={part: each.cpu() for part, each in weight.planes.items()})


class Driver:
    """Stands for the CUDA runtime; knows what was locked."""

    def __init__(self, error=0):
        self.error, self.ranges = error, []

    def cudaHostRegister(self, address, size, flags):
        self.ranges.append((address, address + size))
        return self.error


@pytest.fixture
def locking(monkeypatch):
    """A function that makes such a driver, beside which nothing is locked yet."""

    def make(**facts):
        driver = Driver(**facts)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
        monkeypatch.setattr(host, "_locked", [])
        monkeypatch.setattr(host, "OWN_BYTES", 5000)
        return driver

    return make


def test_memory_stays_as_long_as_it_is_locked(locking, make_weight):
    """Whole pages of large planes, each once."""
    weight, driver = on_host(make_weight("bf16", 40, 96)), locking()
    [plane] = weight.planes.values()
    begin, end = plane.data_ptr(), plane.data_ptr() + plane.nbytes
    found = [host.locked(weight) for _ in range(2)]
    assert all(next(iter(each.planes.values())) is plane for each in found)
    [(low, high)] = driver.ranges
    assert low <= begin < low + 4096 and high - 4096 < end <= high
    assert not low % 4096 and not high % 4096
    kept = weakref.ref(plane)
    del weight, plane, found
    assert kept() is not None


def test_memory_that_cannot_be_locked_is_an_error(locking, make_weight):
    locking(error=2)
    with pytest.raises(UnsupportedError, match="CUDA error 2"):
        host.locked(on_host(make_weight("bf16", 40, 96)))
    assert not host._locked


@pytest.mark.parametrize(
    "name", ["bf16", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32", "nvfp4", "q8_g32_fp16"])
def test_rows_of_a_table_in_host_memory(name, make_weight, bind, device, poisoned):
    weight, ids = make_weight(name, 40, 96), torch.tensor([39, 0, 7], device=device)
    embedding, _ = bind("embedding", weight=on_host(weight))
    assert torch.equal(embedding(ids, poisoned(3, 96).float()), weight.dense()[ids])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="reads memory across the bus of a card")
def test_rows_of_a_large_table_that_stays_where_it_is(make_weight, bind, device, poisoned):
    weight, ids = make_weight("bf16", 1 << 15, 1024), torch.tensor([32767, 0, 7], device=device)
    table, known = on_host(weight), len(host._locked)
    embedding, _ = bind("embedding", weight=table)
    assert torch.equal(embedding(ids, poisoned(3, 1024).float()), weight.dense()[ids])
    assert len(host._locked) == known + 1
