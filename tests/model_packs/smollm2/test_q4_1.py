"""The Q4_1 format: bits of llama.cpp's blocks in, the same numbers out."""

from __future__ import annotations

import gguf
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_pack_smollm2.q4_1 import HalfSplitLayout, Q4_1Codec, parts_of_blocks

FORMAT, Q4_1, BLOCK_BYTES = "q4_1_g32_fp16", GGMLQuantizationType.Q4_1, 20
codec, layout = Q4_1Codec(), HalfSplitLayout()

shapes = st.tuples(st.integers(1, 5), st.integers(1, 4))
blocks = shapes.flatmap(lambda s: hnp.arrays(np.uint8, (s[0], s[1] * BLOCK_BYTES)))
finite = st.floats(-1000, 1000, width=32)
matrices = shapes.flatmap(lambda s: hnp.arrays(np.float32, (s[0], s[1] * 32), elements=finite))


def bits(parts):
    return {name: part.numpy().tobytes() for name, part in parts.items()}


@given(blocks)
def test_any_blocks_keep_their_numbers(raw):
    """Whatever the 20 bytes are, scales that are infinite or no number included."""
    ours = codec.dequantize(parts_of_blocks(torch.from_numpy(raw)))
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = torch.from_numpy(gguf.quants.dequantize(raw, Q4_1))
    assert torch.equal(ours.nan_to_num(nan=7.0), theirs.nan_to_num(nan=7.0))


@given(blocks)
def test_unpack_is_the_inverse_of_pack(raw):
    parts = parts_of_blocks(torch.from_numpy(raw))
    shape = tuple(parts["codes"].shape)
    image = layout.pack(FORMAT, parts)
    planes = {plane.name: plane_view(image, plane) for plane in layout.planes(FORMAT, shape)}
    unpacked = layout.unpack(FORMAT, shape, planes)
    assert image.numel() == layout.nbytes(FORMAT, shape)
    assert bits(unpacked) == bits(parts)


@given(blocks)
def test_code_plane_has_the_nibble_bytes_of_the_blocks(raw):
    image = layout.pack(FORMAT, parts_of_blocks(torch.from_numpy(raw)))
    nibbles = raw.reshape(-1, BLOCK_BYTES)[:, 4:].ravel()
    assert image[: nibbles.size].numpy().tobytes() == nibbles.tobytes()


@given(matrices)
def test_quantized_values_are_within_half_a_step(values):
    values = torch.from_numpy(values)
    parts = codec.quantize(values)
    groups = values.unflatten(-1, (-1, 32))
    spread = groups.amax(-1) - groups.amin(-1)
    # Half a step, and what rounding scale and minimum to fp16 may move the ends by.
    slack = spread / 30 + spread * 2**-10 + groups.abs().amax(-1) * 2**-10 + 2**-20
    errors = (codec.dequantize(parts) - values).abs().unflatten(-1, (-1, 32)).amax(-1)
    assert (errors <= slack).all()
    assert parts["codes"].min() >= 0
    assert parts["codes"].max() <= 15


def test_quantizer_does_no_worse_than_llama_cpp():
    values = np.random.default_rng(0).standard_normal((64, 256), dtype=np.float32)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(values, Q4_1), Q4_1)
    ours = codec.dequantize(codec.quantize(torch.from_numpy(values))).numpy()
    assert np.square(ours - values).sum() <= np.square(theirs - values).sum()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e6])
def test_values_beyond_fp16_are_refused(value):
    values = torch.zeros(2, 32)
    values[1, 3] = value
    with pytest.raises(ArtifactError, match="cannot be stored as Q4_1"):
        codec.quantize(values)


@pytest.mark.parametrize("shape", [(2, 33), (32,), (1, 2, 32)])
def test_shapes_that_do_not_fit_are_refused(shape):
    with pytest.raises(ArtifactError, match="K a multiple of 32"):
        layout.nbytes(FORMAT, shape)


def test_planes_begin_at_multiples_of_256():
    codes, scales, minimums = layout.planes(FORMAT, (3, 96))
    assert (codes.offset, scales.offset, minimums.offset) == (0, 256, 512)
    assert layout.nbytes(FORMAT, (3, 96)) == 512 + 3 * 3 * 2
