"""Layouts against oracles that place one byte at a time, and as exact inverses."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.layouts.planar import pack_bits, plane_view, unpack_bits

ROW_SPLIT = {
    "q4_g64_fp16": (4, 64), "q5_g64_fp16": (5, 64), "q6_g64_fp16": (6, 64), "q8_g32_fp16": (8, 32),
}
SIZES = [
    ("q4_g64_fp16", "row_split_k128_v1", (7168, 5120), 19_496_960),
    ("q5_g64_fp16", "row_split_k128_v1", (7168, 5120), 24_084_480),
    ("q5_g64_fp16", "row_split_k128_v1", (2, 130), 528),
    ("fp8_e4m3fn_row_bf16", "row_scale_v1", (14336, 5120), 73_428_992),
    ("fp8_e4m3fn_g128_fp32", "row_scale_g128_v1", (14336, 5120), 75_694_080),
    ("nvfp4", "block_scale_k16_m128x4_v1", (14336, 5120), 41_287_684),
    ("nvfp4", "block_scale_k16_plain_v1", (24, 48), 1_028),
    ("nvfp4", "expert_block_scale_k16_m128x4_v1", (2, 128, 64), 9_224),
    ("bf16", "contiguous_le_v1", (3, 5, 7), 210),
    ("fp32", "contiguous_le_v1", (), 4),
]


@pytest.mark.parametrize(("format_name", "name", "shape", "nbytes"), SIZES)
def test_sizes_of_the_definition(layout, format_name, name, shape, nbytes):
    assert layout(name).nbytes(format_name, shape) == nbytes


def align(data: bytearray) -> None:
    data.extend(bytes(-len(data) % 256))


def row_split_oracle(codes, scales, bits: int, group: int) -> bytes:
    """Group after group of row after row, lane after lane, in the words of the definition."""
    base, high, multipliers = bytearray(), bytearray(), bytearray()
    for row, row_scales in zip(codes, scales, strict=True):
        padded = row + [0] * (-len(row) % 128)
        for index in range(len(padded) // group):
            words = [c % 2**bits for c in padded[index * group : (index + 1) * group]]
            if bits == 8:
                base.extend(words)
            else:
                for j in range(group // 2):
                    base.append(words[2 * j] & 15 | (words[2 * j + 1] & 15) << 4)
            stream = [word >> bit & 1 for word in words for bit in range(4, bits)] * (bits < 8)
            for t in range(0, len(stream), 8):
                high.append(sum(bit << i for i, bit in enumerate(stream[t : t + 8])))
            multipliers.extend(struct.pack("<e", [*row_scales, 0, 0, 0, 0][index]))
    align(base)
    align(high)
    return bytes(base + high + multipliers)


@st.composite
def grouped_parts(draw, name: str):
    bits, group = ROW_SPLIT[name]
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 300))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    low = -127 if bits == 8 else -(2 ** (bits - 1))
    shape = (rows, columns)
    codes = torch.randint(low, 2 ** (bits - 1), shape, generator=seed, dtype=torch.int8)
    scales = torch.rand(rows, -(-columns // group), generator=seed).half()
    return {"codes": codes, "scales": scales}


def views(layout, format_name: str, shape, image):
    return {p.name: plane_view(image, p) for p in layout.planes(format_name, shape)}


def assert_same(parts, others) -> None:
    assert parts.keys() == others.keys()
    for name, part in parts.items():
        assert part.dtype == others[name].dtype
        assert part.shape == others[name].shape
        raw = (t.contiguous().view(-1).view(torch.uint8) for t in (part, others[name]))
        assert torch.equal(*raw)


@pytest.mark.parametrize("name", ROW_SPLIT)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_row_split_places_every_bit(layout, name, data):
    parts = data.draw(grouped_parts(name))
    row_split = layout("row_split_k128_v1")
    image = row_split.pack(name, parts)
    wanted = row_split_oracle(parts["codes"].tolist(), parts["scales"].tolist(), *ROW_SPLIT[name])
    assert bytes(image.numpy()) == wanted
    shape = tuple(parts["codes"].shape)
    assert_same(parts, row_split.unpack(name, shape, views(row_split, name, shape, image)))


@pytest.mark.parametrize("name", ROW_SPLIT)
def test_row_slices_are_spans_of_the_planes(layout, name):
    bits, group = ROW_SPLIT[name]
    row_split = layout("row_split_k128_v1")
    codes = torch.randint(-7, 8, (6, 130), dtype=torch.int8)
    parts = {"codes": codes, "scales": torch.rand(6, -(-130 // group)).half()}
    planes = views(row_split, name, (6, 130), row_split.pack(name, parts))
    cut = {plane: values[2:5] for plane, values in planes.items()}
    sliced = {part: values[2:5] for part, values in parts.items()}
    assert_same(sliced, row_split.unpack(name, (3, 130), cut))
    assert len(cut) == (3 if bits in (5, 6) else 2)


def block_scale_oracle(codes, scales, divisors) -> bytes:
    """A bank; each scale goes to the offset that the definition computes for it."""
    out = bytearray()
    for matrix in codes:
        for row in matrix:
            out.extend(low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True))
    align(out)
    for matrix in scales:
        groups = len(matrix[0])
        plane = bytearray(len(matrix) * groups)
        for n, row in enumerate(matrix):
            for g, word in enumerate(row):
                tile = n // 128 * (groups // 4) + g // 4
                plane[tile * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4] = word
        out.extend(plane)
    return bytes(out) + b"".join(struct.pack("<f", divisor) for divisor in divisors)


@pytest.mark.parametrize("shape", [(128, 64), (256, 192), (2, 128, 128), (3, 256, 64)])
def test_block_scale_places_every_word(layout, shape):
    *bank, rows, columns = shape
    codes = torch.randint(0, 16, shape, dtype=torch.uint8)
    words = torch.randint(0, 0x7F, (*bank, rows, columns // 16), dtype=torch.uint8)
    divisor = torch.rand(bank)
    parts = {"codes": codes, "scales": words.view(torch.float8_e4m3fn), "divisor": divisor}
    name = ("expert_" if bank else "") + "block_scale_k16_m128x4_v1"
    image = layout(name).pack("nvfp4", parts)
    wanted = block_scale_oracle(
        codes.view(-1, rows, columns).tolist(), words.view(-1, rows, columns // 16).tolist(),
        divisor.view(-1).tolist(),
    )
    assert bytes(image.numpy()) == wanted
    planes = views(layout(name), "nvfp4", shape, image)
    assert_same(parts, layout(name).unpack("nvfp4", shape, planes))


@pytest.mark.parametrize(
    ("format_name", "name", "dtype"),
    [("fp8_e4m3fn_row_bf16", "row_scale_v1", torch.bfloat16),
     ("fp8_e4m3fn_g128_fp32", "row_scale_g128_v1", torch.float32)],
)
@given(rows=st.integers(1, 5), columns=st.integers(1, 300), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_row_scale_places_every_word(layout, format_name, name, dtype, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    groups = (-(-columns // 128),) * (dtype == torch.float32)
    scales = torch.rand(rows, *groups, generator=generator).to(dtype)
    parts = {"codes": words.view(torch.float8_e4m3fn), "scales": scales}
    image = layout(name).pack(format_name, parts)
    wanted = bytearray(bytes(words.numpy().reshape(-1)))
    align(wanted)
    wanted += bytes(scales.view(torch.uint8).numpy().reshape(-1))
    assert bytes(image.numpy()) == bytes(wanted)
    planes = views(layout(name), format_name, (rows, columns), image)
    assert_same(parts, layout(name).unpack(format_name, (rows, columns), planes))
    cut = {plane: values[1:3] for plane, values in planes.items()}
    sliced = {part: values[1:3] for part, values in parts.items()}
    assert_same(sliced, layout(name).unpack(format_name, (min(2, rows - 1), columns), cut))


@given(
    bank=st.lists(st.integers(1, 3), max_size=2), rows=st.integers(1, 6), groups=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30, deadline=None)
def test_plain_block_scale_places_every_word(layout, bank, rows, groups, seed):
    generator, shape = torch.Generator().manual_seed(seed), (*bank, rows, 16 * groups)
    codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    words = torch.randint(0, 256, (*bank, rows, groups), generator=generator, dtype=torch.uint8)
    divisor = torch.rand(bank, generator=generator)
    parts = {"codes": codes, "scales": words.view(torch.float8_e4m3fn), "divisor": divisor}
    plain = layout("block_scale_k16_plain_v1")
    image = plain.pack("nvfp4", parts)
    pairs = codes.view(-1, 2).tolist()
    wanted = bytearray(low | high << 4 for low, high in pairs)
    align(wanted)
    wanted += bytes(words.numpy().reshape(-1))
    align(wanted)
    wanted += b"".join(struct.pack("<f", number) for number in divisor.view(-1).tolist())
    assert bytes(image.numpy()) == bytes(wanted)
    planes = views(plain, "nvfp4", shape, image)
    assert_same(parts, plain.unpack("nvfp4", shape, planes))
    if not bank:
        cut = {**planes, "codes": planes["codes"][1:], "scales": planes["scales"][1:]}
        sliced = {**parts, "codes": codes[1:], "scales": parts["scales"][1:]}
        assert_same(sliced, plain.unpack("nvfp4", (rows - 1, 16 * groups), cut))


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("int32", torch.int32)]
)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 3, 2)])
def test_direct_values_lie_in_c_order_with_all_their_bits(layout, name, dtype, shape):
    count = max(1, int(torch.tensor(shape).prod())) if shape else 1
    words = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)  # NaN included
    parts = {"codes": words.view(dtype).view(shape)}
    image = layout("contiguous_le_v1").pack(name, parts)
    assert torch.equal(image, words)
    planes = views(layout("contiguous_le_v1"), name, shape, image)
    assert_same(parts, layout("contiguous_le_v1").unpack(name, shape, planes))


@given(data=st.binary(min_size=8, max_size=8), width=st.sampled_from([1, 2, 4]))
def test_packed_words_come_back(data, width):
    words = [byte % 2**width for byte in data]
    packed = pack_bits(torch.tensor([words], dtype=torch.uint8), width)
    assert packed.shape == (1, len(words) * width // 8)
    assert unpack_bits(packed, width)[0].tolist() == words


@pytest.mark.parametrize(
    ("name", "format_name", "shape"),
    [
        ("row_split_k128_v1", "q4_g64_fp16", (3,)), ("row_split_k128_v1", "q8_g32_fp16", (2, 3, 4)),
        ("row_scale_v1", "fp8_e4m3fn_row_bf16", (4,)), ("row_scale_v1", "fp8_e4m3fn_row_bf16", ()),
        ("block_scale_k16_m128x4_v1", "nvfp4", (127, 64)),
        ("block_scale_k16_m128x4_v1", "nvfp4", (128, 32)),
        ("block_scale_k16_m128x4_v1", "nvfp4", (2, 128, 64)),
        ("expert_block_scale_k16_m128x4_v1", "nvfp4", (128, 64)),
        ("block_scale_k16_plain_v1", "nvfp4", (4, 24)),
        ("block_scale_k16_plain_v1", "nvfp4", (16,)),
        ("row_scale_g128_v1", "fp8_e4m3fn_g128_fp32", (4,)),
        ("row_scale_g128_v1", "fp8_e4m3fn_g128_fp32", (2, 3, 4)),
    ],
)
def test_shapes_that_a_layout_cannot_hold_are_refused(layout, name, format_name, shape):
    with pytest.raises(ArtifactError, match="cannot hold"):
        layout(name).nbytes(format_name, shape)
