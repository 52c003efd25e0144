"""KV codecs: geometry, stated error bounds, and what becomes of zeros and non-finite values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.state.codecs import Bf16Codec, DirectCodec, Fp8Codec, Fp32Codec, Int8Codec

CODECS = [Fp32Codec(), Bf16Codec(), Int8Codec(), Fp8Codec()]


def named(codec):
    return type(codec).__name__ + getattr(codec, "_dtype", "")


def round_trip(codec, values):
    return codec.decode(codec.encode(values))


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize("dim", [1, 16, 64, 80, 128, 192])
def test_encode_fills_the_declared_planes(codec, dim):
    stored = codec.encode(torch.randn(5, 3, dim))
    declared = {name: (dtype, shape) for name, dtype, shape in codec.planes((3, dim))}
    assert set(stored) == set(declared)
    for name, (dtype, shape) in declared.items():
        assert stored[name].dtype == getattr(torch, dtype)
        assert stored[name].shape == (5, *shape)
    assert codec.decode(stored).shape == (5, 3, dim)
    assert codec.decode(stored).dtype == torch.float32


def test_planes_of_the_formats():
    assert Int8Codec().planes((2, 128)) == (
        ("codes", "int8", (2, 128)), ("scales", "float16", (2, 2))
    )
    assert Int8Codec().planes((2, 32))[1] == ("scales", "float16", (2, 1))
    assert Fp8Codec().planes((2, 128)) == (
        ("codes", "float8_e4m3fn", (2, 128)), ("scales", "float32", (2,))
    )
    assert DirectCodec("int32").planes((7,)) == (("values", "int32", (7,)),)


def int8_bound(values):
    groups = values.abs().split(64, dim=-1)
    largest = torch.cat([group.amax(-1, keepdim=True).expand_as(group) for group in groups], -1)
    return 0.57 * largest / 127 + 127 * 2.0**-25


def fp8_bound(values):
    scale = (values.abs().amax(-1, keepdim=True) / 448).clamp(min=2.0**-126)
    return 2.0**-4 * values.abs() + 2.0**-10 * scale


BOUNDS = [
    (Fp32Codec(), lambda values: torch.zeros_like(values)),
    (Bf16Codec(), lambda values: 2.0**-8 * values.abs()),
    (Int8Codec(), int8_bound), (Fp8Codec(), fp8_bound),
]


@pytest.mark.parametrize(("codec", "bound"), BOUNDS, ids=lambda value: named(value))
@given(
    seed=st.integers(0, 2**31), dim=st.sampled_from([1, 8, 64, 96, 128]),
    exponent=st.integers(-40, 19), outlier=st.sampled_from([1.0, 50.0, 1000.0]),
)
def test_error_stays_within_the_stated_bound(codec, bound, seed, dim, exponent, outlier):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(4, 2, dim, generator=generator) * 2.0**exponent / outlier
    values[..., dim // 2] *= outlier
    error = (round_trip(codec, values).double() - values.double()).abs()
    assert (error <= bound(values.double()) * (1 + 1e-6)).all()


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_zeros_are_exact(codec):
    assert round_trip(codec, torch.zeros(3, 2, 64)).eq(0).all()


@pytest.mark.parametrize(("codec", "least"), [(Int8Codec(), 2.0**-24), (Fp8Codec(), 2.0**-126)])
def test_scales_are_never_zero(codec, least):
    for values in (torch.zeros(1, 1, 64), torch.full((1, 1, 64), 2.0**-140)):
        stored = codec.encode(values)
        assert stored["scales"].eq(least).all()
        assert stored["codes"].float().eq(0).all()


@pytest.mark.parametrize("codec", CODECS, ids=named)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_stay_visible(codec, bad):
    values = torch.ones(2, 1, 64)
    values[0, 0, 5] = bad
    decoded = round_trip(codec, values)
    assert not decoded[0, 0, 5].isfinite()
    assert torch.allclose(decoded[1], torch.ones(64), rtol=1e-3)


def test_int8_overflow_is_visible():
    assert not round_trip(Int8Codec(), torch.full((1, 1, 64), 1e7)).isfinite().any()


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_a_vector_is_encoded_alike_in_any_company(codec):
    values = torch.randn(37, 3, 80)
    together = codec.encode(values)
    for t in range(37):
        for name, alone in codec.encode(values[t : t + 1]).items():
            assert alone.view(torch.uint8).equal(together[name][t : t + 1].view(torch.uint8))
