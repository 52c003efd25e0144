"""Codecs against oracles that follow the definitions of the formats, one number at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.artifact.formats import grouped, minifloat

GROUPED = {
    "q4_g64_fp16": (64, -8, 7), "q5_g64_fp16": (64, -16, 15), "q6_g64_fp16": (64, -32, 31),
    "q8_g32_fp16": (32, -127, 127),
}
FLOATS = st.floats(-60000, 60000, width=32) | st.sampled_from([0.0, -0.0, 1e-7, -3e-8, 1e-38])
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 140))
MATRICES = hnp.arrays(np.float32, SHAPES, elements=FLOATS)


def absmax_group(x: np.ndarray, low: int, high: int) -> tuple[list[int], np.float16]:
    """One group, in the words of the definition; numpy rounds each fp32 operation exactly."""
    amax = np.max(np.abs(x))
    if amax == 0:
        return [0] * len(x), np.float16(0)
    scale = np.float16(np.float32(np.float64(amax) / high))
    if scale == 0:
        scale = np.float16(2.0**-24)
    inverse = np.float32(1) / np.float32(scale)
    return [max(low, min(high, round(float(v * inverse)))) for v in x], scale


@pytest.mark.parametrize("name", GROUPED)
@given(values=MATRICES)
@settings(max_examples=40, deadline=None)
def test_grouped_absmax_is_bit_exact(codec, name, values):
    group, low, high = GROUPED[name]
    parts = codec(name).quantize(torch.from_numpy(values))
    rows, columns = values.shape
    for row in range(rows):
        for index, begin in enumerate(range(0, columns, group)):
            codes, scale = absmax_group(values[row, begin : begin + group], low, high)
            assert parts["codes"][row, begin : begin + group].tolist() == codes
            assert parts["scales"][row, index].numpy().tobytes() == scale.tobytes()
    assert parts["scales"].shape == (rows, -(-columns // group))


@pytest.mark.parametrize("name", GROUPED)
@given(values=MATRICES)
@settings(max_examples=20, deadline=None)
def test_grouped_values_are_the_fp32_product(codec, name, values):
    group = GROUPED[name][0]
    parts = codec(name).quantize(torch.from_numpy(values))
    scales = np.repeat(parts["scales"].numpy().astype(np.float32), group, axis=1)
    wanted = parts["codes"].numpy().astype(np.float32) * scales[:, : values.shape[1]]
    assert codec(name).dequantize(parts).numpy().tobytes() == wanted.tobytes()


def test_codes_come_from_the_reciprocal_and_not_from_a_division(codec):
    # Found by search: x / s rounds to another code than x * (1 / s).
    found = 0
    for numerator in range(1, 4000):
        amax = np.float32(numerator / 997)
        scale = np.float32(np.float16(np.float32(amax / np.float32(7))))
        x = np.nextafter(np.float32(2.5) * scale, np.float32(10))
        by_product = round(float(x * (np.float32(1) / scale)))
        if by_product != round(float(x / scale)) and x <= amax:
            values = torch.zeros(1, 64)
            values[0, :2] = torch.tensor([float(amax), float(x)])
            assert codec("q4_g64_fp16").quantize(values)["codes"][0, 1] == by_product
            found += 1
    assert found


def test_ties_go_to_even(codec):
    values = torch.zeros(1, 64)
    values[0, :6] = torch.tensor([7.0, 0.5, 1.5, 2.5, -0.5, -2.5])  # the scale is 1
    assert codec("q4_g64_fp16").quantize(values)["codes"][0, :6].tolist() == [7, 0, 2, 2, 0, -2]


def test_zero_groups_have_scale_zero_and_codes_zero(codec):
    parts = codec("q5_g64_fp16").quantize(torch.tensor([[0.0, -0.0] * 64]))
    assert not parts["codes"].any()
    assert parts["scales"].view(torch.int16).tolist() == [[0, 0]]


def test_tiny_groups_get_the_smallest_scale(codec):
    parts = codec("q4_g64_fp16").quantize(torch.tensor([[1e-8, 2.0**-24]]))
    assert parts["scales"].view(torch.int16).tolist() == [[1]]
    assert parts["codes"].tolist() == [[0, 1]]


def test_q8_never_has_the_code_minus_128(codec):
    values = torch.tensor([[-178.0, 1.0]]) * 2.0**-24  # of which the scale is 2**-24
    assert codec("q8_g32_fp16").quantize(values)["codes"].tolist() == [[-127, 1]]


@pytest.mark.parametrize("name", [*GROUPED, "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32"])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 3.4e38])
def test_values_without_a_finite_scale_are_refused(codec, name, bad):
    if name == "fp8_e4m3fn_row_bf16" and bad == 3.4e38:
        bad = 3.4028e38  # rounds to infinity in bf16
    if name == "fp8_e4m3fn_g128_fp32" and bad == 3.4e38:
        bad = float("inf")  # that has a scale in fp32
    values = torch.ones(2, 64)
    values[1, 3] = bad
    with pytest.raises(ArtifactError, match="not finite"):
        codec(name).quantize(values)


def e4m3(word: int) -> Fraction | None:
    sign, exponent, fraction = -1 if word & 128 else 1, word >> 3 & 15, word & 7
    if exponent == 15 and fraction == 7:
        return None
    if exponent == 0:
        return sign * Fraction(fraction, 512)
    return sign * (1 + Fraction(fraction, 8)) * Fraction(2) ** (exponent - 7)


E4M3 = {word: e4m3(word) for word in range(128) if e4m3(word) is not None}


def nearest_e4m3(value: float) -> int:
    """The word of the nearest value; of two equally near ones the even word."""
    exact = abs(Fraction(value))
    word = min(E4M3, key=lambda w: (abs(E4M3[w] - exact), w & 1))
    return word | (128 if np.signbit(value) else 0)


def bf16(value: np.float32) -> np.float32:
    return np.float32(torch.tensor(float(value)).bfloat16().item())


@given(
    values=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(1, 8)),
        elements=st.floats(2.0**-90, 1e6, width=32).flatmap(lambda v: st.sampled_from([v, -v]))
        | st.sampled_from([0.0, -0.0, 0.25, 448.0]),
    )
)
@settings(max_examples=100, deadline=None)
def test_fp8_row_maxabs_is_bit_exact(codec, values):
    parts = codec("fp8_e4m3fn_row_bf16").quantize(torch.from_numpy(values))
    for row, codes, scale in zip(values, parts["codes"], parts["scales"], strict=True):
        rounded = np.array([bf16(v) for v in row], np.float32)
        amax = np.max(np.abs(rounded))
        wanted = bf16(np.float32(np.float64(amax) / 448))
        assert scale.item() == wanted
        inverse = np.float32(1) / np.float32(wanted) if amax else np.float32(0)
        normal = np.clip(rounded * inverse, -448, 448)
        words = [nearest_e4m3(float(v)) if amax else 0 for v in normal]
        assert codes.view(torch.uint8).tolist() == words


@given(
    values=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 3), st.integers(1, 300)),
        elements=st.floats(2.0**-90, 1e6, width=32) | st.floats(-1e6, -(2.0**-90), width=32)
        | st.sampled_from([0.0, -0.0, 0.25, 448.0]), fill=st.sampled_from([0.0, 1.0]),
    )
)
@settings(max_examples=60, deadline=None)
def test_fp8_group_maxabs_is_bit_exact(codec, values):
    parts = codec("fp8_e4m3fn_g128_fp32").quantize(torch.from_numpy(values))
    assert parts["codes"].shape == values.shape
    assert parts["scales"].shape == (len(values), -(-values.shape[1] // 128))
    for (n, g), scale in np.ndenumerate(parts["scales"].numpy()):
        group = values[n, 128 * g : 128 * (g + 1)]
        amax = np.max(np.abs(group))
        assert scale == np.float32(np.float64(amax) / 448)
        inverse = np.float32(1) / scale if amax else np.float32(0)
        normal = np.clip(group * inverse, -448, 448)
        words = [nearest_e4m3(float(v)) if amax else 0 for v in normal]
        codes = parts["codes"][n, 128 * g : 128 * (g + 1)]
        assert codes.view(torch.uint8).tolist() == words


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 3), columns=st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_fp8_groups_are_the_fp32_product(codec, seed, rows, columns):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, 127, (rows, columns), generator=generator, dtype=torch.uint8)
    words += 128 * torch.randint(0, 2, words.shape, generator=generator, dtype=torch.uint8)
    scales = torch.rand(rows, -(-columns // 128), generator=generator) + 1e-3
    values = codec("fp8_e4m3fn_g128_fp32").dequantize(
        {"codes": words.view(torch.float8_e4m3fn), "scales": scales})
    for (n, k), word in np.ndenumerate(words.numpy()):
        number = np.float32(float(e4m3(int(word))))
        assert values[n, k] == number * scales[n, k // 128].numpy()


@pytest.mark.parametrize("name", ["fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32"])
def test_fp8_values_whose_reciprocal_overflows_are_refused(codec, name):
    with pytest.raises(ArtifactError, match="not finite"):
        codec(name).quantize(torch.tensor([[1e-38, 0.0]]))


def test_fp8_values_are_the_fp32_product_of_all_finite_words(codec):
    words = [word | sign for sign in (0, 128) for word in E4M3]
    codes = torch.tensor([words], dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.tensor([0.3]).bfloat16()
    values = codec("fp8_e4m3fn_row_bf16").dequantize({"codes": codes, "scales": scale})
    wanted = [np.float32(float(e4m3(w))) * np.float32(scale.item()) for w in words]
    assert values[0].tolist() == [float(value) for value in wanted]


@pytest.mark.parametrize(
    ("code", "scale"), [(0x7F, 1.0), (0xFF, 1.0), (1, 0.0), (1, -1.0), (1, float("inf")), (0, -0.0)]
)
def test_fp8_words_that_the_format_lacks_are_refused(codec, code, scale):
    codes = torch.tensor([[code]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    rows, groups = torch.tensor([scale]).bfloat16(), torch.tensor([[scale]])
    for name, scales in (("fp8_e4m3fn_row_bf16", rows), ("fp8_e4m3fn_g128_fp32", groups)):
        with pytest.raises(ArtifactError, match="invalid"):
            codec(name).dequantize({"codes": codes, "scales": scales})


E2M1 = [0, Fraction(1, 2), 1, Fraction(3, 2), 2, 3, 4, 6]


@pytest.mark.parametrize("divisor", [1.0, 3.0, 1e-3, 2688.7])
def test_nvfp4_values_of_all_codes_and_scales(codec, divisor):
    scales = torch.tensor([[*E4M3]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.arange(16, dtype=torch.uint8).repeat(1, len(E4M3))
    parts = {"codes": codes, "scales": scales, "divisor": torch.tensor(divisor)}
    values = codec("nvfp4").dequantize(parts).view(len(E4M3), 16)
    for row, word in zip(values, E4M3, strict=True):
        for value, code in zip(row.tolist(), range(16), strict=True):
            product = np.float32(float(E4M3[word] * E2M1[code & 7]))  # exact in fp32
            wanted = product / np.float32(divisor) * (-1 if code & 8 else 1)
            assert value == wanted
            assert np.signbit(value) == bool(code & 8)


def test_nvfp4_divisors_of_a_bank_are_those_of_its_matrices(codec):
    codes = torch.full((2, 3, 16), 2, dtype=torch.uint8)
    scales = torch.ones(2, 3, 1).to(torch.float8_e4m3fn)
    values = codec("nvfp4").dequantize(
        {"codes": codes, "scales": scales, "divisor": torch.tensor([2.0, 4.0])}
    )
    assert values[0].eq(0.5).all()
    assert values[1].eq(0.25).all()


@pytest.mark.parametrize(
    ("scale", "divisor"),
    [(-1.0, 1.0), (-0.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, -2.0),
     (1.0, float("inf")), (1.0, float("nan"))],
)
def test_nvfp4_words_that_the_format_lacks_are_refused(codec, scale, divisor):
    parts = {
        "codes": torch.zeros(1, 16, dtype=torch.uint8), "divisor": torch.tensor(divisor),
        "scales": torch.tensor([[scale]]).to(torch.float8_e4m3fn),
    }
    with pytest.raises(ArtifactError, match="invalid"):
        codec("nvfp4").dequantize(parts)


def test_nvfp4_is_only_imported(codec):
    with pytest.raises(UnsupportedError, match="quantises"):
        codec("nvfp4").quantize(torch.ones(128, 64))


def test_cast_direct_rounds_to_even_and_keeps_what_is_not_finite(codec):
    values = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, float("inf"), float("nan"), -0.0])
    words = codec("bf16").quantize(values)["codes"].view(torch.int16).tolist()
    assert words[:3] == [0x3F80, 0x3F82, 0x7F80]
    assert words[4] == -0x8000
    assert torch.isnan(codec("bf16").dequantize(codec("bf16").quantize(values)))[3]


def test_integers_keep_every_bit(codec):
    values = torch.tensor([2**31 - 1, -(2**31), 2**24 + 1])
    assert codec("int32").dequantize(codec("int32").quantize(values)).tolist() == values.tolist()


def test_dequantized_values_are_the_callers_own(codec):
    stored = {"codes": torch.zeros(3)}
    codec("fp32").dequantize(stored).add_(1)
    assert not stored["codes"].any()


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_group_scales_that_are_not_finite_are_refused(codec, name, bad):
    parts = codec(name).quantize(torch.ones(2, 100))
    parts["scales"][1, 1] = bad
    with pytest.raises(ArtifactError, match="a scale is not finite"):
        codec(name).dequantize(parts)


def test_q8_has_no_code_of_minus_128(codec):
    parts = codec("q8_g32_fp16").quantize(torch.ones(2, 100))
    parts["codes"][1, 7] = -128
    with pytest.raises(ArtifactError, match="a code is -128"):
        codec("q8_g32_fp16").dequantize(parts)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), 2.0**31, -(2.0**40)])
def test_only_integers_are_stored_as_integers(codec, value):
    with pytest.raises(ArtifactError, match="as integers"):
        codec("int32").quantize(torch.tensor([1.0, value]))
    kept = torch.tensor([-(2.0**31), -1.0, 2.0**30])
    assert codec("int32").quantize(kept)["codes"].tolist() == [-(2**31), -1, 2**30]


@pytest.mark.parametrize("name", [*GROUPED, "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32"])
def test_large_matrices_are_quantised_a_few_rows_at_a_time(codec, name, monkeypatch):
    values = torch.randn(70, 300)
    whole = codec(name).quantize(values)
    monkeypatch.setattr(grouped, "_CHUNK_ELEMENTS", 1000)
    sizes, normalize = [], grouped.absmax_normalize

    def watched(groups, *options):
        sizes.append(groups.numel())
        return normalize(groups, *options)

    for module in (grouped, minifloat):
        monkeypatch.setattr(module, "absmax_normalize", watched)
    chunked = codec(name).quantize(values)
    assert max(sizes) <= 3 * 384  # three rows of 300, filled up to a multiple of the group
    for part, expected in whole.items():
        assert torch.equal(chunked[part].view(torch.uint8), expected.view(torch.uint8))
