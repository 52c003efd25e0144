"""Files of a set: what is verified when, and that damage is refused and never half-loaded."""

from __future__ import annotations

import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, NInferError
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights

TENSORS = {f"text/w{i}": torch.arange(3000.0) + i for i in range(4)}  # 12,000 bytes each
LIMIT = 16_384  # three pages of payload in a part


@pytest.fixture
def split(tmp_path, write) -> Path:
    """The entry of a set of several parts."""
    return write(tmp_path / "m.ninfer", TENSORS, max_file_bytes=LIMIT, resources={"tok": b"hello"})


@pytest.fixture
def load(formats, layouts):
    def make(path: Path, select=None):
        return load_weights(open_artifact(path), formats=formats, layouts=layouts, select=select)

    return make


def part(entry: Path, index: int) -> Path:
    return entry.with_name(f"{entry.name}.part-{index:04d}")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(bytes(content))


def refused(load, path: Path, message: str = ".") -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        load(path)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix


def test_framing_is_that_of_the_definition(split):
    raw = split.read_bytes()
    json_bytes = struct.unpack("<Q", raw[8:16])[0]
    assert raw[:8] == bytes.fromhex("4e494e4645520003")
    assert (32 + json_bytes) % 4096 == 0  # the writer fills the page with blanks
    assert raw[32:33] == b"{"
    assert len(raw) <= LIMIT
    for index in (1, 2, 3):
        head = part(split, index).read_bytes()[:4096]
        assert head[:8] == bytes.fromhex("4e494e5052540003")
        assert struct.unpack("<Q", head[8:16])[0] == index
        assert head[16:32] == raw[16:32]
        assert not any(head[32:])
    assert open_artifact(split).artifact_id.bytes == raw[16:32]


def test_a_set_is_described_without_its_parts(split):
    for path in split.parent.glob("*.part-*"):
        path.unlink()
    artifact = open_artifact(split)
    assert artifact.description().architectures == ("ToyForCausalLM",)
    assert artifact.description().components == {"text": {"architectures": ["ToyForCausalLM"]}}
    assert artifact.nbytes == 48_000
    assert list(artifact.objects) == [*TENSORS, "text/tok"]
    assert artifact.bindings["text/w1"].object == "text/w1"


def test_only_files_that_are_touched_must_be_there(split, load):
    part(split, 2).unlink()
    assert torch.equal(load(split, ["text/w0"]).tensor("text/w0"), TENSORS["text/w0"])
    assert open_artifact(split).resource("tok") == b"hello"
    refused(load, split, "part-0002")


def test_resources_are_their_bytes(split):
    artifact = open_artifact(split)
    assert artifact.resources() == {"tok": b"hello"}
    assert artifact.resources("vision") == {}
    with pytest.raises(ArtifactError, match="no template in component 'text'"):
        artifact.resource("template")
    with pytest.raises(ArtifactError, match="no tok in component 'vision'"):
        artifact.resource("tok", "vision")


def test_every_byte_of_the_magic_counts(split, load):
    good = split.read_bytes()
    for offset in range(8):
        overwrite(split, offset, bytes([good[offset] ^ 0x20]))
        refused(load, split, "version 3")
        split.write_bytes(good)
    load(split)


def test_a_wrong_size_of_the_catalogue_is_refused(split, load):
    for json_bytes in (0, 1, 40, 8192, 10**6, 2**63, 2**64 - 1):
        overwrite(split, 8, struct.pack("<Q", json_bytes))
        refused(load, split)


def test_a_truncated_entry_is_refused(split, load):
    good = split.read_bytes()
    for size in (0, 1, 8, 31, 32, 33, 500, 4095, 4096, 4097, len(good) - 1):
        split.write_bytes(good[:size])
        refused(load, split)


def test_a_truncated_part_is_refused(split, load):
    good = part(split, 2).read_bytes()
    for size in (0, 1, 31, 32, 4096, len(good) - 1):
        part(split, 2).write_bytes(good[:size])
        refused(load, split, "part-0002")


def test_trailing_bytes_are_refused(split, load):
    with part(split, 2).open("ab") as file:
        file.write(b"x")
    refused(load, split, "16385 bytes instead of 16384")
    with split.open("ab") as file:
        file.write(b"x")
    refused(load, split, "m.ninfer]: it has")


def test_every_byte_of_a_part_header_counts(split, load):
    good = part(split, 1).read_bytes()
    for offset in range(32):
        overwrite(part(split, 1), offset, bytes([good[offset] ^ 1]))
        refused(load, split, "part-0001.*is not part 1 of m.ninfer")
        part(split, 1).write_bytes(good)
    load(split)


def test_reordered_parts_are_refused(split, load):
    first, second = part(split, 1).read_bytes(), part(split, 2).read_bytes()
    part(split, 1).write_bytes(second)
    part(split, 2).write_bytes(first)
    refused(load, split, "part-0001.*is not part 1")


def test_parts_of_another_set_are_refused(split, load, write, tmp_path):
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "m.ninfer", TENSORS, max_file_bytes=LIMIT)
    shutil.copy(part(other, 1), part(split, 1))
    refused(load, split, "part-0001.*is not part 1")


def test_an_entry_with_another_id_finds_no_parts(split, load):
    overwrite(split, 16, bytes(16))
    refused(load, split, "is not part")


def test_a_part_is_no_entry(split, load):
    refused(load, part(split, 1), "NINPRT")


def test_paths_that_cannot_be_read_are_named(tmp_path, load):
    refused(load, tmp_path / "absent.ninfer", "absent.ninfer.*No such file")
    refused(load, tmp_path, "cannot be read")


def test_an_entry_that_lists_itself_is_refused(split, load):
    renamed = part(split, 1).with_name("renamed")
    part(split, 1).rename(renamed)
    split.rename(part(split, 1))
    refused(load, part(split, 1), "its own set")


def test_a_set_may_be_moved(split, load, tmp_path):
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    store = load(tmp_path / "elsewhere" / "m.ninfer")
    assert all(torch.equal(store.tensor(name), values) for name, values in TENSORS.items())


def test_other_versions_are_told_apart(tmp_path, load):
    path = tmp_path / "old.ninfer"
    path.write_bytes(b"NINFER\0\2" + struct.pack("<Q", 20) + b'{"objects": []}     ' + bytes(5000))
    refused(load, path, "version 3")


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["set", "cut", "insert"]), st.binary(max_size=3)),
    min_size=1, max_size=4,
)


@given(edits=EDITS)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damage_raises_nothing_but_our_errors(tmp_path, write, load, edits):
    good = tmp_path / "good.ninfer"
    if not good.exists():
        write(good, {"a": torch.ones(2, 3), "b": (torch.ones(3, 130), "q5_g64_fp16")},
              bind={"c": [("b", (0, 130))], "d": [("a", (3, 6))]})
    content = bytearray(good.read_bytes())
    for place, kind, data in edits:
        at = int(place * 900)  # header and catalogue
        content[at : at + (0 if kind == "insert" else len(data))] = b"" if kind == "cut" else data
    damaged = tmp_path / "damaged.ninfer"
    damaged.write_bytes(bytes(content))
    try:
        store = load(damaged)
        for name in store.artifact.bindings:
            store.weight(name)
    except NInferError as error:
        assert error.why


def by_hand(folder: Path, catalogue: dict, payload: bytes, cuts: list[int], blanks: bytes) -> Path:
    """A set made of bytes alone, as the definition words it."""
    edges, set_id = [0, *cuts, len(payload)], bytes(range(16))
    catalogue["files"] = [
        {"path": f"piece {index}" if index else None, "payload_bytes": end - begin}
        for index, (begin, end) in enumerate(pairwise(edges))
    ]
    text = json.dumps(catalogue).encode() + blanks
    head = b"NINFER\0\3" + struct.pack("<Q", len(text)) + set_id + text
    (folder / "m.ninfer").write_bytes(head + bytes(-len(head) % 4096) + payload[: edges[1]])
    for index, (begin, end) in enumerate(pairwise(edges[1:]), start=1):
        head = b"NINPRT\0\3" + struct.pack("<Q", index) + set_id
        (folder / f"piece {index}").write_bytes(head.ljust(4096, b"\0") + payload[begin:end])
    return folder / "m.ninfer"


@given(
    cuts=st.sets(st.integers(1, 1300), max_size=4).map(sorted),
    blanks=st.text(" \n\t\r", max_size=9).map(lambda text: text.encode() * 700),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sets_of_other_writers_are_read(tmp_path, formats, layouts, cuts, blanks):
    vector = struct.pack("<3f", 1.5, -2.0, 1e-30)
    codes, high, scales = bytearray(256), bytearray(64), bytearray(16)  # q5 [2, 130], P = 256
    codes[128 + 64] = 0xF3  # row 1: column 128 has the low bits 3, column 129 has 15
    high[32 + 16] = 0b01  # and the first of them bit 4: 19 - 32 = -13
    scales[8 + 4 : 8 + 6] = struct.pack("<e", 0.25)
    matrix = bytes(codes) + bytes(high).ljust(256, b"\0") + bytes(scales)
    objects = [
        {"id": "v", "kind": "tensor", "shape": [3], "format": "fp32", "offset": 256, "bytes": 12,
         "layout": "contiguous_le_v1"},
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 268, "bytes": 4},
        {"id": "m", "kind": "tensor", "shape": [2, 130], "format": "q5_g64_fp16", "offset": 512,
         "bytes": 528, "layout": "row_split_k128_v1"},
    ]
    payload = b"\xff" * 256 + vector + b"text" + b"\xff" * 240 + matrix + b"\xff" * 264
    path = by_hand(tmp_path, {
        "components": {"text": {"config": {}, "resources": {"tok": "r"}}}, "objects": objects,
        "bindings": {"v": {"object": "v"},
                     "row": {"parts": [{"object": "m", "range": [130, 260]}]}},
        "uses": [],
    }, payload, cuts, blanks)
    artifact = open_artifact(path)
    store = load_weights(artifact, formats=formats, layouts=layouts)
    assert store.tensor("v").tolist() == [1.5, -2.0, struct.unpack("<f", vector[8:])[0]]
    assert store.tensor("row")[0, 126:].tolist() == [0, 0, -13 * 0.25, 15 * 0.25]
    assert artifact.resource("tok") == b"text"


def test_a_catalogue_that_the_file_does_not_hold_is_refused_unread(split):
    overwrite(split, 8, b"\xff" * 8)
    with pytest.raises(ArtifactError, match="end before its catalogue"):
        open_artifact(split)
