"""GGUF files as a source, written by the reference library."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
import torch
from attrs import evolve
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError, NInferError

RANDOM = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)


@pytest.fixture
def source_of(write_gguf):
    """A source with the tensor ``x`` of some type."""

    def make(kind: Kind, values: np.ndarray = RANDOM):
        return open_source(write_gguf({"llama.block_count": 2}, {"x": (values, kind)}))

    return make


@pytest.fixture
def small_file(write_gguf):
    vocabulary = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.token_type": [1, 1, 1],
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return write_gguf(vocabulary, {"x": (RANDOM, Kind.Q8_0)})


def test_metadata_is_the_config(source_of):
    description = source_of(Kind.F32).description
    assert (description.origin, description.architectures) == ("gguf", ("llama",))
    assert description.config["llama.block_count"] == 2
    assert not [key for key in description.config if key.startswith(("GGUF.", "tokenizer."))]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_0])
def test_dense_values_are_those_of_the_reference_library(source_of, kind):
    tensor = source_of(kind).tensors["x"]
    expected = gguf.quants.dequantize(gguf.quants.quantize(RANDOM, kind), kind)
    assert (tensor.dtype, tensor.shape) == (kind.name, (3, 64))
    assert torch.equal(tensor.dense(), torch.from_numpy(expected.reshape(3, 64)))


@pytest.mark.parametrize(
    ("kind", "name"), [(Kind.F32, "fp32"), (Kind.F16, "fp32"), (Kind.BF16, "bf16")]
)
def test_direct_types_are_held_exactly(source_of, kind, name):
    tensor = source_of(kind).tensors["x"]
    assert tensor.format == name
    assert torch.equal(tensor.parts()["codes"].float(), tensor.dense())


def test_q8_0_is_q8_g32_fp16(source_of, plugins):
    tensor = source_of(Kind.Q8_0).tensors["x"]
    codec = plugins.registry.formats[tensor.format].spec.codec.load()()
    assert tensor.format == "q8_g32_fp16"
    assert torch.equal(codec.dequantize(tensor.parts()), tensor.dense())


def test_a_q8_0_code_of_minus_128_is_refused(source_of):
    """The reference quantizer never writes it, but the type allows it; our format does not."""
    tensor = source_of(Kind.Q8_0).tensors["x"]
    blocks = np.array(tensor._data)
    blocks[0, 2] = 128
    changed = evolve(tensor, data=blocks)
    with pytest.raises(ArtifactError, match=r"\[x\]: q8_g32_fp16 has no code -128"):
        changed.parts()


def test_other_types_are_raw_blocks(source_of):
    tensor = source_of(Kind.Q5_0).tensors["x"]
    assert tensor.format == ""
    assert (tensor.raw().dtype, tuple(tensor.raw().shape)) == (torch.uint8, (3, 2 * 22))


@pytest.mark.parametrize("size", [0, 3, 30, 200, -1])
def test_a_truncated_file_is_refused(write_gguf, size):
    path = write_gguf({"llama.block_count": 2}, {"x": (RANDOM, Kind.F32)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactError, match="damaged"):
        open_source(path)


NESTED, BYTES = struct.pack("<IQ", 9, 1), struct.pack("<IQ", 0, 1 << 62)


@pytest.mark.parametrize("value", [NESTED * 20_000, BYTES], ids=["nested", "endless"])
def test_a_hostile_array_is_refused_at_once(tmp_path, value):
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    path = tmp_path / "hostile.gguf"
    path.write_bytes(head + struct.pack("<I", 9) + value + bytes(100))
    with pytest.raises(ArtifactError, match="damaged"):
        open_source(path)


@pytest.mark.parametrize("offset", [0, 3, 33])
def test_tensors_in_the_wrong_place_are_refused(write_gguf, offset):
    path = write_gguf({}, {"x": (RANDOM, Kind.F32), "y": (RANDOM, Kind.F32)})
    raw = path.read_bytes()
    place = raw.index(b"y") + 1 + 4 + 2 * 8 + 4  # behind its name, rank, extents and type
    assert raw[place : place + 8] == struct.pack("<Q", RANDOM.nbytes)
    path.write_bytes(raw[:place] + struct.pack("<Q", offset) + raw[place + 8 :])
    with pytest.raises(ArtifactError, match=r"[xy] overlaps"):
        open_source(path)


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_refused_or_harmless(small_file, data):
    """Whatever bytes of a file change, a user sees no errors but ours."""
    whole = small_file.read_bytes()
    places = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    damaged = bytearray(whole)
    for place, byte in data.draw(st.lists(places, min_size=1, max_size=3)):
        damaged[place] = byte
    path = small_file.with_name("damaged.gguf")
    path.write_bytes(damaged)
    try:
        shapes = {name: tuple(t.dense().shape) for name, t in open_source(path).tensors.items()}
    except NInferError as error:
        assert error.why
    else:
        assert len(shapes) <= 1


def test_a_piece_of_a_split_set_is_refused(write_gguf):
    path = write_gguf({"split.count": 3}, {"x": (RANDOM, Kind.F32)})
    with pytest.raises(ArtifactError, match="split set"):
        open_source(path)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0, Kind.Q5_0])
def test_matrices_and_rows_are_read_alone(write_gguf, kind):
    values = np.random.default_rng(0).standard_normal((2, 5, 64), np.float32)
    bank = open_source(write_gguf({}, {"x": (values, kind)})).tensors["x"]
    rows = bank[1][1:4]
    assert (rows.name, rows.shape, rows.scalars()) == ("x", (3, 64), {})
    assert torch.equal(rows.dense(), bank.dense()[1, 1:4])
    assert torch.equal(bank[-1].dense(), bank.dense()[1])
    if kind != Kind.Q5_0:
        for name, part in rows.parts().items():
            assert torch.equal(part, bank.parts()[name][1, 1:4]), name
    with pytest.raises(IndexError):
        bank[2]
