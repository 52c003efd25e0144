"""Quantised tensors against a dequantiser that follows the definitions, one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
F32, BF16, F16, F8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn


def e4m3(word: int) -> float:
    sign, exponent, fraction = -1 if word & 128 else 1, word >> 3 & 15, word & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    power = 2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else fraction / 512
    return sign * power


def e2m1(word: int) -> float:
    return -E2M1[word & 7] if word & 8 else E2M1[word]


def words(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def naive_fp8(codes: torch.Tensor, scale, block: tuple[int, int]) -> torch.Tensor:
    """``codes[n, k] * scale[n // rows, k // columns]`` of a matrix, in fp64, rounded once."""
    grid, out = scale.double().numpy(), np.empty(codes.shape, np.float32)
    for (n, k), word in np.ndenumerate(words(codes)):
        out[n, k] = e4m3(int(word)) * grid[n // block[0], k // block[1]]
    return torch.from_numpy(out)


def naive_nvfp4(packed: torch.Tensor, scales, multiplier: float, divisor: float) -> torch.Tensor:
    groups, out = words(scales), np.empty((packed.shape[0], packed.shape[1] * 2), np.float32)
    for n, k in np.ndindex(*out.shape):
        word = int(packed[n, k // 2]) >> (4 if k % 2 else 0) & 15
        out[n, k] = e2m1(word) * e4m3(int(groups[n, k // 16])) * multiplier / divisor
    return torch.from_numpy(out)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fp8(*shape, seed=0):
    return (torch.randn(shape, generator=generator(seed)) * 50).to(F8)


def nibbles(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=generator(seed), dtype=torch.uint8)


def scale(*shape, dtype=F32, seed=1):
    return (torch.rand(shape, generator=generator(seed)) * 1e-3 + 1e-4).to(dtype)


def group_scales(*shape, seed=2):
    return (torch.rand(shape, generator=generator(seed)) * 400 + 1).to(F8)


FP8 = {"x.weight": fp8(4, 8)}
G128 = "fp8_e4m3fn_g128_fp32"


def dequantized(plugins, tensor):
    """The values that the core reads out of a tensor's parts."""
    return plugins.registry.formats[tensor.format].spec.codec.load()().dequantize(tensor.parts())


GRAINS = {  # stored shape of the scale of [130, 140]: rows and columns of a block
    (): (130, 140), (1,): (130, 140), (1, 1): (130, 140), (130,): (1, 140), (130, 1): (1, 140),
    (2, 2): (128, 128),
}


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("role", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("shape", GRAINS, ids=str)
def test_fp8_is_code_times_scale(join, plugins, shape, role, dtype):
    codes, given, block = fp8(130, 140), scale(*shape, dtype=dtype), GRAINS[shape]
    tensors, _ = join({"x.weight": codes, f"x.{role}": given})
    assert tensors.keys() == {"x.weight"}
    tensor = tensors["x.weight"]
    grid = given.view(-(-130 // block[0]), -(-140 // block[1]))
    expected = naive_fp8(codes, grid, block)
    assert (tensor.dtype, tensor.shape) == ("F8_E4M3", (130, 140))
    assert torch.equal(tensor.dense(), expected)
    assert torch.equal(dequantized(plugins, tensor), expected)
    assert np.array_equal(words(tensor.parts()["codes"]), words(codes))
    by_rows = block[1] == 140 and dtype is BF16
    assert tensor.format == ("fp8_e4m3fn_row_bf16" if by_rows else G128)


def test_row_scales_that_bf16_holds_are_stored_so_whatever_their_type(join):
    rows = scale(6, 1, dtype=BF16).float()
    tensors, _ = join({"x.weight": fp8(6, 200), "x.weight_scale": rows})
    assert tensors["x.weight"].format == "fp8_e4m3fn_row_bf16"
    assert torch.equal(tensors["x.weight"].parts()["scales"].float(), rows[:, 0])
    alone, _ = join({"x.weight": fp8(6, 200), "x.weight_scale": torch.tensor(0.5)})
    assert alone["x.weight"].format == G128


@pytest.mark.parametrize(
    ("block", "shape", "format_name"),
    [
        ([64, 256], (130, 600), G128), ([1, 128], (3, 200), G128), ([16, 64], (40, 64), G128),
        ([16, 16], (40, 40), ""), ([128, 64], (40, 130), ""), ([7, 100], (40, 250), ""),
    ],
)
def test_blocks_have_the_size_that_the_config_says(join, plugins, block, shape, format_name):
    rows, columns = block
    codes, given = fp8(*shape), scale(-(-shape[0] // rows), -(-shape[1] // columns))
    config = {"quantization_config": {"weight_block_size": block}}
    tensors, _ = join({"x.weight": codes, "x.weight_scale_inv": given}, **config)
    tensor, expected = tensors["x.weight"], naive_fp8(codes, given, (rows, columns))
    assert torch.equal(tensor.dense(), expected)
    assert tensor.format == format_name
    if format_name:
        assert torch.equal(dequantized(plugins, tensor), expected)


def test_blocks_of_compressed_tensors(join):
    group = {"weights": {"strategy": "block", "block_structure": [16, 128]}, "targets": ["Linear"]}
    config = {"quantization_config": {"config_groups": {"a": group, "b": {"weights": None}}}}
    codes, given = fp8(40, 200), scale(3, 2)
    tensors, _ = join({"x.weight": codes, "x.weight_scale": given}, **config)
    assert torch.equal(tensors["x.weight"].dense(), naive_fp8(codes, given, (16, 128)))


@pytest.mark.parametrize("quantization", [
    5, {"weight_block_size": 128}, {"weight_block_size": [128]}, {"weight_block_size": [0, 128]},
    {"weight_block_size": ["a", 1]}, {"config_groups": [1]}, {"config_groups": {"a": 5}},
    {"weight_block_size": [1, 1], "config_groups": {"a": {"weights": {"block_structure": [2, 2]}}}},
])
def test_an_odd_config_is_refused(join, quantization):
    with pytest.raises(ArtifactError, match=r"config\.json"):
        join({"x.weight": fp8(4, 4)}, quantization_config=quantization)


@pytest.mark.parametrize("stored", [torch.uint8, torch.float8_e8m0fnu])
def test_mxfp8_is_code_times_power_of_two_and_exact_in_bf16(join, stored):
    """A scale for 32 of a row, which is an exponent, whichever type it has."""
    codes = fp8(6, 100)
    exponents = torch.randint(110, 132, (6, 4), generator=generator(), dtype=torch.uint8)
    tensor = join({"x.weight": codes, "x.weight_scale": exponents.view(stored)})[0]["x.weight"]
    expected = naive_fp8(codes, torch.exp2(exponents.double() - 127), (1, 32))
    assert tensor.format == "bf16"
    assert torch.equal(tensor.dense(), expected)
    assert torch.equal(tensor.parts()["codes"].float(), expected)
    assert torch.equal(tensor[2:5].dense(), expected[2:5])


def test_mxfp8_below_bf16_is_refused_instead_of_rounded(join):
    exponents = torch.tensor([[127, 0]], dtype=torch.uint8)  # and 2^-9 under 2^-127
    codes = torch.tensor([1.0] * 32 + [2.0**-9] * 32).to(F8).view(1, 64)
    tensors, _ = join({"x.weight": codes, "x.weight_scale": exponents})
    with pytest.raises(ArtifactError, match="too small for bf16"):
        tensors["x.weight"].parts()


def test_a_scale_of_all_pieces_of_a_table(join, plugins):
    """Beside the table, not beside each piece."""
    shards = {f"t.shard_{i}.weight": fp8(3, 160, seed=i) for i in range(11)}
    tensors, _ = join(shards | {"t.weight_scale": scale(1, dtype=BF16)})
    assert tensors.keys() == shards.keys()
    for name, codes in shards.items():
        grid = scale(1, dtype=BF16).view(1, 1)
        assert torch.equal(tensors[name].dense(), naive_fp8(codes, grid, (3, 160)))
        assert torch.equal(dequantized(plugins, tensors[name]), tensors[name].dense())


def test_pieces_with_scales_of_their_own_and_a_multiplier_of_all(join):
    shards = {f"t.shard_{i}.weight": nibbles(3, 80, seed=i) for i in range(3)}
    groups = {f"{name}_scale": group_scales(3, 10, seed=i) for i, name in enumerate(shards)}
    tensors, _ = join(shards | groups | {"t.weight_scale_2": torch.tensor([2.0**-10])})
    assert tensors.keys() == shards.keys()
    for name, codes in shards.items():
        expected = naive_nvfp4(codes, groups[f"{name}_scale"], 2.0**-10, 1)
        assert torch.equal(tensors[name].dense(), expected)


def test_a_scale_of_pieces_that_have_one_each_is_one_too_many(join):
    tensors = {**FP8, "x.weight_scale": scale()}
    tensors = {name.replace("x", "t.shard_0"): each for name, each in tensors.items()}
    with pytest.raises(ArtifactError, match="two scales weight_scale"):
        join(tensors | {"t.weight_scale": scale()})


def modelopt(name="x.weight", mark=".", multiplier=2.0**-12, **more):
    stem = name.removesuffix(".weight")
    return {
        name: nibbles(6, 24), f"{stem}{mark}weight_scale": group_scales(6, 3),
        f"{stem}{mark}weight_scale_2": torch.tensor(multiplier), **more,
    }


def compressed_tensors(divisor=2.0**12, **more):
    return {
        "x.weight_packed": nibbles(6, 24), "x.weight_scale": group_scales(6, 3),
        "x.weight_global_scale": torch.tensor([divisor]), **more,
    }


def test_nvfp4_of_modelopt_multiplies(join, plugins):
    tensors, _ = join(modelopt(multiplier=3.7e-5))
    tensor = tensors["x.weight"]
    expected = naive_nvfp4(nibbles(6, 24), group_scales(6, 3), 3.7e-5, 1)
    assert (tensor.dtype, tensor.shape, tensor.format) == ("U8", (6, 48), "nvfp4")
    assert torch.equal(dequantized(plugins, tensor), tensor.dense())
    # the divisor is the inverse, rounded to fp32
    torch.testing.assert_close(tensor.dense(), expected, rtol=2e-7, atol=0)


def test_nvfp4_of_compressed_tensors_divides(join, plugins):
    tensors, _ = join(compressed_tensors(divisor=2877.3))
    tensor = tensors["x.weight"]
    expected = naive_nvfp4(nibbles(6, 24), group_scales(6, 3), 1, np.float32(2877.3))
    assert (tensor.dtype, tensor.shape, tensor.format) == ("U8", (6, 48), "nvfp4")
    assert torch.equal(tensor.dense(), expected)
    assert torch.equal(dequantized(plugins, tensor), expected)
    assert tensor.scalars() == {"divisor": float(np.float32(2877.3))}


def test_both_kinds_of_nvfp4_give_the_same_parts(join):
    one, other = join(modelopt())[0]["x.weight"], join(compressed_tensors())[0]["x.weight"]
    assert one.scalars() == other.scalars() == {"divisor": 4096.0}
    for name, part in one.parts().items():
        assert np.array_equal(words(part.view(-1)), words(other.parts()[name].view(-1))), name


@given(divisor=st.floats(1.0, 1e7, width=32))
def test_an_inverse_is_right_to_the_last_bit_but_one(join, divisor):
    tensors, _ = join(modelopt(multiplier=float(np.float32(1) / np.float32(divisor))))
    found = np.float32(tensors["x.weight"].scalars()["divisor"])
    assert abs(found - np.float32(divisor)) <= np.spacing(np.float32(divisor))


@pytest.mark.parametrize(
    ("tensors", "scalars"),
    [
        (modelopt(**{"x.input_scale": torch.tensor(0.25)}), 4.0),
        (compressed_tensors(**{"x.input_global_scale": torch.tensor([0.25])}), 0.25),
        ({**FP8, "x.weight_scale": scale(), "x.input_scale": torch.tensor(0.5)}, 2.0),
        (modelopt(**{"x.input_scale": torch.tensor(0.0)}), math.inf),  # and nobody may use it
    ],
)
def test_activation_scales_are_numbers_of_the_tensor(join, tensors, scalars):
    joined, _ = join(tensors)
    assert joined.keys() == {"x.weight"}
    assert joined["x.weight"].scalars()["activation_input_divisor"] == scalars


def test_kv_scales_are_ignored_with_a_reason(join):
    tensors = {"a.k_proj.k_scale": torch.tensor(1.0), "a.v_proj.v_scale": torch.tensor(1.0)}
    joined, ignored = join({**tensors, "a.weight": torch.ones(2, 2)})
    assert joined.keys() == {"a.weight"}
    assert ignored.keys() == tensors.keys()
    assert all("KV cache" in reason for reason in ignored.values())


def fused(kind):
    """A bank of 3 matrices, with the values of each by an own path."""
    if kind == "nvfp4":
        codes, groups, numbers = nibbles(3, 6, 24), group_scales(3, 6, 3), scale(3)
        tensors = {"e.up": codes, "e.up_weight_scale": groups, "e.up_weight_scale_2": numbers,
                   "e.up_input_scale": torch.tensor([0.5, 0.25, 0.125])}
        values = [naive_nvfp4(codes[e], groups[e], float(numbers[e]), 1) for e in range(3)]
        return tensors, values
    shape, block = {
        "tensor": ((), (40, 140)), "matrix": ((3, 1, 1), (40, 140)),
        "row": ((3, 40, 1), (1, 140)), "block": ((3, 2, 2), (32, 128)),
    }[kind]
    codes, given = fp8(3, 40, 140), scale(*shape)
    role = "scale_inv" if kind == "block" else "weight_scale"
    grid = given.expand(3, 1, 1) if kind == "tensor" else given
    values = [naive_fp8(codes[e], grid[e], block) for e in range(3)]
    return {"e.up": codes, f"e.up_{role}": given}, values


@pytest.mark.parametrize("kind", ["nvfp4", "tensor", "matrix", "row", "block"])
def test_banks_are_read_whole_by_matrix_and_by_rows(join, plugins, kind):
    tensors, values = fused(kind)
    config = {"quantization_config": {"weight_block_size": [32, 128]}}
    joined, _ = join(tensors, **config)
    assert joined.keys() == {"e.up"}
    bank, close = joined["e.up"], {"rtol": 2e-7 if kind == "nvfp4" else 0, "atol": 0}
    torch.testing.assert_close(bank.dense(), torch.stack(values), **close)
    assert bank.parts()["codes"].shape == bank.shape
    for e, expected in enumerate(values):
        rows = bank[e][1:5]
        assert (rows.name, rows.shape) == ("e.up", (4, expected.shape[1]))
        torch.testing.assert_close(bank[e].dense(), expected, **close)
        torch.testing.assert_close(rows.dense(), expected[1:5], **close)
        torch.testing.assert_close(dequantized(plugins, rows), expected[1:5], **close)
    torch.testing.assert_close(bank[1:][1].dense(), values[2], **close)
    if kind == "nvfp4":
        assert bank.scalars() == {}
        assert [bank[e].scalars()["activation_input_divisor"] for e in range(3)] == [2, 4, 8]


@given(begin=st.integers(0, 299), count=st.integers(1, 300), inner=st.integers(0, 299))
@settings(max_examples=20, deadline=None)
def test_any_rows_of_blocks_are_those_of_the_whole(join, begin, count, inner):
    tensors, _ = join({"x.weight": fp8(300, 140), "x.weight_scale_inv": scale(3, 2)})
    whole, rows = tensors["x.weight"], tensors["x.weight"][begin : begin + count]
    assert torch.equal(rows.dense(), whole.dense()[begin : begin + count])
    if inner < rows.shape[0]:
        assert torch.equal(rows[inner:].dense(), rows.dense()[inner:])


def test_rows_of_a_dense_tensor_are_read_alone(write_directory):
    values = torch.randn(4, 5, 3)
    stored = {"x": values, "s": values[0, 0, 0].clone()}
    source = open_source(write_directory({"m.safetensors": stored}, None))
    tensor = source.tensors["x"]
    assert torch.equal(tensor[2].dense(), values[2])
    assert torch.equal(tensor[2][1:4][1:].dense(), values[2, 2:4])
    assert torch.equal(tensor[-1][0][2].dense(), values[3, 0, 2])
    assert (tensor[1:3].shape, tensor[1].shape) == ((2, 5, 3), (5, 3))
    assert torch.equal(source.tensors["s"].dense(), values[0, 0, 0])
    with pytest.raises(IndexError):
        tensor[4]
    with pytest.raises(IndexError, match="steps"):
        tensor[::2]


def test_a_real_file_of_each_kind(write_directory):
    bank, values = fused("nvfp4")
    blocks = {"b.weight": fp8(130, 140), "b.weight_scale_inv": scale(2, 2, dtype=BF16)}
    shards = {"1.safetensors": {**modelopt(), **bank}, "2.safetensors": blocks}
    index = {name: file for file, tensors in shards.items() for name in tensors}
    source = open_source(write_directory(shards, index))
    assert source.tensors.keys() == {"x.weight", "e.up", "b.weight"}
    torch.testing.assert_close(source.tensors["e.up"][1][2:4].dense(), values[1][2:4])
    expected = naive_fp8(blocks["b.weight"], blocks["b.weight_scale_inv"], (128, 128))
    assert torch.equal(source.tensors["b.weight"].dense(), expected)
    assert torch.equal(source.tensors["b.weight"][129:].dense(), expected[129:])


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (FP8, "x.weight"),
        ({**FP8, "x.weight_scale": scale(3, 1)}, "x.weight_scale"),
        ({**FP8, "x.weight_scale": scale(4, 8)}, "x.weight_scale"),
        ({**FP8, "x.weight_scale": fp8(4, 1)}, "x.weight_scale"),
        ({**FP8, "x.weight_scale": nibbles(1, 1)}, "x.weight_scale"),
        ({**FP8, "x.weight_scale": scale(), "x.weight_scale_inv": scale()}, "x.weight"),
        ({**FP8, "x.weight_scale": scale(), "x.weight_scale_2": scale()}, "x.weight"),
        ({"x.weight": fp8(4), "x.weight_scale": scale()}, "x.weight"),
        ({"x.weight": fp8(4, 8).float(), "x.weight_scale": scale()}, "x.weight"),
        ({"x.weight": fp8(4, 8).to(BF16), "x.input_scale": scale()}, "x.weight"),
        ({"x.weight": fp8(4, 8).to(torch.int8), "x.weight_scale": scale()}, "x.weight"),
        ({"x.weight_packed": nibbles(4, 8).int(), "x.weight_scale": scale()}, "x.weight_packed"),
        ({"x.weight_packed": nibbles(4, 8)}, "x.weight_packed"),
        ({**modelopt(), "x.weight_scale": group_scales(6, 2)}, "x.weight_scale"),
        ({**modelopt(), "x.weight_scale": scale(6, 3)}, "x.weight_scale"),
        ({**modelopt(), "x.weight_scale_2": scale(6, 1)}, "x.weight_scale_2"),
        ({**modelopt(), "x.weight_scale_2": group_scales()}, "x.weight_scale_2"),
        ({**modelopt(), "x.weight_global_scale": scale()}, "x.weight"),
        ({**modelopt(), "x.weight": nibbles(6, 20)}, "x.weight_scale"),
        ({"x.weight": nibbles(6, 24), "x.weight_scale": group_scales(6, 3)}, "x.weight"),
        ({"x.weight": nibbles(6, 24), "x.weight_scale_2": scale()}, "x.weight"),
        ({**modelopt(), **compressed_tensors()}, "x.weight_scale"),
        ({**modelopt(), "x.weight_scale_inv": scale()}, "x.weight"),
        ({**modelopt(), "x.input_scale": scale(), "x.input_global_scale": scale()}, "x.weight"),
        ({**modelopt(), "x.input_scale": scale(6)}, "x.input_scale"),
        ({"x": fp8(4, 8), "x_weight_scale": scale(), "x.weight_scale": scale()}, "x"),
    ],
)
def test_what_does_not_fit_is_named(join, tensors, named):
    with pytest.raises(ArtifactError) as caught:
        join(tensors)
    assert caught.value.where == named


def test_u8_without_scales_is_not_read_as_numbers(join):
    tensors, _ = join({"x.weight": nibbles(4, 8)})
    with pytest.raises(ArtifactError, match=r"\[x\.weight\]: it is U8 without scales"):
        tensors["x.weight"].dense()


def test_a_scale_beside_no_tensor_stays_one(join):
    tensors, _ = join({"x.weight_scale": scale(), "y.weight": torch.ones(2, 2)})
    assert tensors.keys() == {"x.weight_scale", "y.weight"}


NAN = torch.tensor([0x7F], dtype=torch.uint8).view(F8)


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        ({"x.weight_scale": torch.tensor(-0.5)}, "x.weight_scale", "negative"),
        ({"x.weight_scale": torch.tensor(math.nan)}, "x.weight_scale", "NaN"),
        ({"x.weight_scale": torch.tensor(math.inf)}, "x.weight_scale", "infinite"),
        ({"x.weight_scale": torch.tensor(0.0)}, "x.weight_scale", "is 0"),
        ({"x.weight": NAN.expand(4, 8).contiguous()}, "x.weight", "a code is NaN"),
    ],
)
@pytest.mark.parametrize("read", ["parts", "dense"])
def test_damaged_fp8_is_named(join, change, named, why, read):
    tensors, _ = join({**FP8, "x.weight_scale": scale(), **change})
    with pytest.raises(ArtifactError) as caught:
        getattr(tensors["x.weight"], read)()
    assert caught.value.where == named
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x.weight_scale_2": torch.tensor(0.0)}, "x.weight_scale_2"),
        ({"x.weight_scale_2": torch.tensor(-1.0)}, "x.weight_scale_2"),
        ({"x.weight_scale_2": torch.tensor(math.inf)}, "x.weight_scale_2"),
        ({"x.weight_scale_2": torch.tensor(math.nan)}, "x.weight_scale_2"),
        ({"x.weight_scale_2": torch.tensor(1e-42)}, "x.weight_scale_2"),
        ({"x.weight_scale": (-group_scales(6, 3).float()).to(F8)}, "x.weight_scale"),
        ({"x.weight_scale": NAN.expand(6, 3).contiguous()}, "x.weight_scale"),
    ],
)
@pytest.mark.parametrize("read", ["parts", "dense"])
def test_damaged_nvfp4_is_named(join, change, named, read):
    tensors, _ = join(modelopt() | change)
    with pytest.raises(ArtifactError) as caught:
        getattr(tensors["x.weight"], read)()
    assert caught.value.where == named


def test_zeros_under_a_scale_of_zero_are_zeros(join):
    codes, rows = fp8(4, 8), scale(4, 1)
    codes[1], rows[1] = 0, 0
    tensors, _ = join({"x.weight": codes, "x.weight_scale": rows})
    assert not tensors["x.weight"].dense()[1].any()


def quantized_nvfp4(values):
    """NVFP4 as its exporters make it, of one matrix: the largest group scale is 448."""
    largest = values.abs().amax().item()
    groups = values.view(values.shape[0], -1, 16)
    multiplier = largest / (6 * 448)
    scales = (groups.abs().amax(-1) / 6 / multiplier).to(F8)
    steps = groups / (scales.float() * multiplier).clamp_min(1e-30).unsqueeze(-1)
    table = torch.tensor([e2m1(word) for word in range(16)])
    codes = (steps.unsqueeze(-1) - table).abs().argmin(-1).flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales, multiplier


@pytest.mark.parametrize("size", [1e-4, 0.02, 1.0, 100.0])
def test_inverted_scales_of_nvfp4_are_noticed(join, size):
    values = torch.randn(8, 64, generator=generator()) * size
    codes, scales, multiplier = quantized_nvfp4(values)
    right = {"weight_scale_2": multiplier, "weight_global_scale": 1 / multiplier}
    for role, number in right.items():
        tensors = {"x.weight": codes, "x.weight_scale": scales}
        joined, _ = join({**tensors, f"x.{role}": torch.tensor(number)})
        assert (joined["x.weight"].dense() - values).abs().max() < 0.4 * values.abs().max()
        joined, _ = join({**tensors, f"x.{role}": torch.tensor(1 / number)})
        for read in ("parts", "dense"):
            with pytest.raises(ArtifactError, match=rf"x\.weight\].*with x\.{role}.*its inverse"):
                getattr(joined["x.weight"], read)()


@pytest.mark.parametrize("size", [1e-4, 0.02, 1.0])
def test_inverted_scales_of_fp8_are_noticed(join, size):
    values = torch.randn(8, 64, generator=generator()) * size
    multiplier = values.abs().max() / 448
    codes = (values / multiplier).to(F8)
    joined, _ = join({"x.weight": codes, "x.weight_scale_inv": multiplier})
    assert (joined["x.weight"].dense() - values).abs().max() < 0.1 * size * 4
    joined, _ = join({"x.weight": codes, "x.weight_scale_inv": 1 / multiplier})
    with pytest.raises(ArtifactError, match=r"x\.weight\].*weight_scale_inv.*its inverse"):
        joined["x.weight"].parts()


@pytest.mark.parametrize("values", [torch.zeros(2, 16), torch.full((2, 16), 6.0)])
def test_constant_matrices_are_plausible(join, values):
    codes = torch.full((2, 8), 0x77 if values.any() else 0, dtype=torch.uint8)
    tensors = {"x.weight": codes, "x.weight_scale": torch.ones(2, 1).to(F8)}
    joined, _ = join({**tensors, "x.weight_scale_2": torch.tensor(1.0)})
    assert torch.equal(joined["x.weight"].dense(), values)
