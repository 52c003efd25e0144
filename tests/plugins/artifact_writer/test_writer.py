"""Writing: how payload is split, what is declared and read back, what errors leave."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_artifact_writer.writer import MAX_FILE_BYTES, ArtifactWriter, Outline, _split
from ninfer_core.api import ArtifactError
from ninfer_core.artifact.catalogue import Part
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights
from ninfer_fixtures.numbers import BYTES, TEXT, add, names


def test_everything_declared_is_read_back(tmp_path):
    components = {
        "text": {"config": {"architectures": ["Toy"]}, "proposal": {"domain": "full"}},
        "vision": {"config": {"depth": 2}, "target": "text"},
    }
    with ArtifactWriter(
        tmp_path / "m.ninfer", components=components, metadata={"name": "toy"},
        provenance={"source": "x"},
    ) as writer:
        add(writer, "a")
        writer.add_resource("tokenizer.json", b"{}")
        writer.add_resource("preprocessor_config.json", b"[]", component="vision")
        add(writer, "b")
        writer.bind("both", [Part("b", (0, 5)), Part("a", (5, 10))])
        writer.use("a", "x", "AllowA8", {"divisor": "b", "other": [Part("b", (1, 2))]})
        writer.use("a", "y")
    artifact = open_artifact(tmp_path / "m.ninfer")
    assert artifact.metadata == {"name": "toy"}
    assert artifact.provenance == {"source": "x"}
    assert artifact.components["vision"].target == "text"
    assert artifact.components["text"].proposal.domain == "full"
    assert artifact.resource("tokenizer.json") == b"{}"
    assert artifact.resources("vision") == {"preprocessor_config.json": b"[]"}
    assert [part[1:] for part in artifact.parts("both")] == [(0, 5), (5, 10)]
    use = artifact.uses[0]
    assert (use.parameter, use.input, use.activation_policy) == ("a", "x", "AllowA8")
    assert use.auxiliaries["other"].spans() == [("b", (1, 2))]
    assert artifact.uses[1].activation_policy is None
    offsets = {name: each.offset for name, each in artifact.objects.items()}
    assert offsets == {
        "a": 0, "text/tokenizer.json": 40, "vision/preprocessor_config.json": 42, "b": 256,
    }


def test_each_set_has_an_id_of_its_own(tmp_path):
    for name in ("a", "b"):
        with ArtifactWriter(tmp_path / name, components=TEXT) as writer:
            add(writer, "w")
    assert open_artifact(tmp_path / "a").artifact_id != open_artifact(tmp_path / "b").artifact_id


def test_split_of_the_definition():
    # The example of the format: payload begins at 65,536 in an entry of the default size.
    assert _split(31_999_934_464 + 4096, MAX_FILE_BYTES, 65_536) == [31_999_934_464, 4096]
    assert _split(31_999_934_464, MAX_FILE_BYTES, 65_536) == [31_999_934_464]
    assert _split(100, 4196, 4096) == [100]


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 9).map(lambda n: n * 4096))
def test_split_keeps_limits_and_pages(payload, limit, start):
    try:
        sizes = _split(payload, limit, start)
    except ArtifactError:
        assert limit < start + payload
        assert min(limit - start, limit - 4096) < 4096
        return
    assert sum(sizes) == payload
    assert all(sizes)
    assert start + sizes[0] <= limit
    assert all(4096 + size <= limit for size in sizes[1:])
    assert all(size % 4096 == 0 for size in sizes[:-1])
    if len(sizes) > 2:  # files are full
        assert set(sizes[1:-1]) == {(limit - 4096) // 4096 * 4096}


def test_a_catalogue_larger_than_a_page_moves_the_payload(tmp_path, formats, layouts):
    config = {"architectures": ["Toy"], "note": "é" * 3000}
    with ArtifactWriter(
        tmp_path / "m.ninfer", components={"text": {"config": config}}, max_file_bytes=45_056
    ) as writer:
        for index in range(100):
            add(writer, f"w{index}", BYTES + index)
    artifact = open_artifact(tmp_path / "m.ninfer")
    assert artifact.shards.payload_start == 32_768
    assert artifact.components["text"].config == config
    assert len(artifact.shards.files) > 1
    assert all(path.stat().st_size <= 45_056 for path in tmp_path.iterdir())
    store = load_weights(artifact, formats=formats, layouts=layouts)
    for index in (0, 57, 99):
        image = store.weight(f"w{index}").planes["codes"].view(torch.uint8)
        assert torch.equal(image, BYTES + index)


def test_a_limit_without_room_is_refused(tmp_path):
    with (
        pytest.raises(ArtifactError, match="raise max_file_bytes"),
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT, max_file_bytes=4100) as writer,
    ):
        add(writer, "w")
    assert names(tmp_path) == []


def test_images_are_made_one_at_a_time_and_in_order(tmp_path):
    made = []

    def image(name):
        return lambda: made.append(name) or [(0, BYTES)]

    with ArtifactWriter(tmp_path / "m.ninfer", components=TEXT) as writer:
        add(writer, "a", image("a"), nbytes=40)
        add(writer, "b", image("b"), nbytes=40)
        assert made == []
    assert made == ["a", "b"]


def test_an_image_is_gone_before_the_next_is_made(tmp_path):
    alive: list[weakref.ref[np.ndarray]] = []

    def make():
        assert not any(each() is not None for each in alive)
        array = np.zeros(300, np.uint8)
        alive.append(weakref.ref(array))
        yield 0, torch.from_numpy(array)
        del array

    with ArtifactWriter(tmp_path / "m.ninfer", components=TEXT) as writer:
        for index in range(3):
            writer.add_tensor(str(index), (75,), "fp32", "contiguous_le_v1", make, nbytes=300)
    assert len(alive) == 3


@settings(max_examples=25)
@given(st.data(), st.integers(4096 + 4096, 20_000))
def test_pieces_may_come_in_any_order(tmp_path_factory, data, max_file_bytes):
    """Over the ends of files, too; gaps are zero."""
    sizes = data.draw(st.lists(st.integers(1, 6000), min_size=1, max_size=8))
    left_out = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    image = torch.arange(sum(sizes) * 4).remainder(251).to(torch.uint8)
    pieces, begin = [], 0
    for index, size in enumerate(sizes):
        pieces.append((begin, image[begin : begin + 4 * size].clone()))
        begin += 4 * size
        if index in left_out:
            pieces.pop()[1]
            image[begin - 4 * size : begin] = 0
    mixed = data.draw(st.permutations(pieces))
    path = tmp_path_factory.mktemp("m") / "m.ninfer"
    with ArtifactWriter(path, components=TEXT, max_file_bytes=max_file_bytes) as writer:
        add(writer, "first")
        writer.add_tensor(
            "w", (sum(sizes),), "fp32", "contiguous_le_v1", lambda: mixed, nbytes=4 * sum(sizes))
        add(writer, "last")
    artifact = open_artifact(path)
    for name, expected in (("first", BYTES), ("w", image), ("last", BYTES)):
        stored = artifact.objects[name]
        read = b"".join(artifact.shards.read(stored.offset, stored.bytes))
        assert read == expected.numpy().tobytes()


def test_an_outline_is_the_set_without_its_payload(tmp_path):
    def declare(outline, image):
        outline.add_tensor("a", (2,), "fp32", "contiguous_le_v1", image, nbytes=8)
        outline.bind("text/a", "a")
        divisor = {"activation_input_divisor": [Part("a", (0, 1))]}
        outline.use("text/a", "text/in", "AllowA4", divisor)
        outline.add_resource("x.json", b"{}")

    options = {"components": TEXT, "metadata": {"name": "m"}, "provenance": {"source": "s"}}
    planned = Outline(tmp_path / "planned.ninfer", **options)
    declare(planned, lambda: pytest.fail("made"))
    artifact = planned.artifact()
    with ArtifactWriter(tmp_path / "m.ninfer", **options) as writer:
        declare(writer, BYTES[:8])
    written = open_artifact(tmp_path / "m.ninfer")
    for member in ("components", "objects", "bindings", "uses", "metadata", "provenance"):
        assert getattr(artifact, member) == getattr(written, member)
    with pytest.raises(ArtifactError, match=r"planned\.ninfer.*outline"):
        artifact.resource("x.json")
    assert names(tmp_path) == ["m.ninfer"]


def test_an_outline_of_contradictions_is_refused(tmp_path):
    planned = Outline(tmp_path / "m.ninfer", components=TEXT)
    planned.bind("text/a", "absent")
    with pytest.raises(ArtifactError, match=r"m\.ninfer"):
        planned.artifact()


def test_progress_counts_bytes(tmp_path):
    seen = []
    with ArtifactWriter(
        tmp_path / "m.ninfer", components=TEXT, progress=lambda *step: seen.append(step)
    ) as writer:
        add(writer, "a")
        add(writer, "b", lambda: [(20, BYTES[20:]), (4, BYTES[4:20])], nbytes=40)
    assert [*dict.fromkeys(seen)] == [
        ("write", done, 296) for done in (40, 256 + 20, 256 + 36, 256 + 40)]


def test_images_need_not_be_contiguous(tmp_path, formats, layouts):
    with ArtifactWriter(tmp_path / "m.ninfer", components=TEXT) as writer:
        add(writer, "w", torch.stack([BYTES, BYTES], 1)[:, 0])
    store = load_weights(open_artifact(tmp_path / "m.ninfer"), formats=formats, layouts=layouts)
    assert torch.equal(store.weight("w").planes["codes"].view(torch.uint8), BYTES)


def declare_badly(writer: ArtifactWriter, what: str) -> None:
    add(writer, "w", nbytes=None)
    if what == "no tensor":
        writer.bind("x", "absent")
    if what == "one id":
        add(writer, "w")
    if what == "range":
        writer.bind("x", [Part("w", (0, 11))])
    if what == "use":
        writer.use("x", "y")
    if what == "policy":
        writer.use("w", "y", "A3")
    if what == "empty resource":
        writer.add_resource("r", b"")
    if what == "no size":
        add(writer, "v", lambda: [(0, BYTES)])
    if what == "rank":
        writer.add_tensor("v", (1,) * 17, "fp32", "contiguous_le_v1", BYTES)


@pytest.mark.parametrize(
    "what",
    ["no tensor", "one id", "range", "use", "policy", "empty resource", "no size", "rank"],
)
def test_declarations_that_a_reader_would_refuse_are_not_written(tmp_path, what):
    writer = ArtifactWriter(tmp_path / "m.ninfer", components=TEXT)
    with pytest.raises(ArtifactError, match="not a valid"), writer:
        declare_badly(writer, what)
    assert names(tmp_path) == []


@pytest.mark.parametrize("config", [{"x": float("nan")}, {"x": "\ud800"}, {"x": 2**70}])
def test_configs_that_are_not_json_are_not_written(tmp_path, config):
    with (
        pytest.raises(ArtifactError, match="cannot be"),
        ArtifactWriter(tmp_path / "m.ninfer", components={"text": {"config": config}}) as writer,
    ):
        add(writer, "w")
    assert names(tmp_path) == []


def test_an_image_of_another_size_leaves_nothing(tmp_path):
    with (
        pytest.raises(ArtifactError, match=r"object c.*41 instead of 40 bytes"),
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT, max_file_bytes=8192) as writer,
    ):
        add(writer, "a", torch.zeros(4000, dtype=torch.uint8))
        add(writer, "b", torch.zeros(4000, dtype=torch.uint8))
        add(writer, "c", lambda: [(0, BYTES[:20]), (20, BYTES[:21])], nbytes=40)
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_nothing(tmp_path, error):
    def fail():
        raise error

    with (
        pytest.raises(error),
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT) as writer,
    ):
        add(writer, "a")
        add(writer, "b", fail, nbytes=40)
    assert names(tmp_path) == []


def test_an_error_while_declaring_writes_nothing(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT) as writer,
    ):
        add(writer, "a")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_a_directory_that_does_not_exist_is_named(tmp_path):
    with (
        pytest.raises(ArtifactError, match=r"absent.m\.ninfer.*No such file"),
        ArtifactWriter(tmp_path / "absent" / "m.ninfer", components=TEXT) as writer,
    ):
        add(writer, "a")
