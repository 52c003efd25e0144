"""Names of files: nothing is overwritten, the entry comes last, two writers do no harm."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from ninfer_artifact_writer import publish
from ninfer_artifact_writer.publish import published
from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core.api import ArtifactError
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights
from ninfer_fixtures.numbers import TEXT, add, names


def test_an_existing_entry_is_refused_at_once(tmp_path):
    (tmp_path / "m.ninfer").write_bytes(b"mine")
    with pytest.raises(ArtifactError, match="never overwritten"):
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT)
    assert (tmp_path / "m.ninfer").read_bytes() == b"mine"


def test_an_existing_part_is_refused_before_images_are_made(tmp_path):
    (tmp_path / "m.ninfer.part-0001").write_bytes(b"mine")
    with (
        pytest.raises(ArtifactError, match="part-0001"),
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT, max_file_bytes=8192) as writer,
    ):
        add(writer, "a", lambda: pytest.fail("made"), nbytes=8000)
    assert names(tmp_path) == ["m.ninfer.part-0001"]


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "m.ninfer"

    def image():
        path.write_bytes(b"theirs")
        return [(0, torch.zeros(8000, dtype=torch.uint8))]

    with (
        pytest.raises(ArtifactError, match="cannot be written"),
        ArtifactWriter(path, components=TEXT, max_file_bytes=8192) as writer,
    ):
        add(writer, "a", image, nbytes=8000)
    assert names(tmp_path) == ["m.ninfer"]  # the parts that were published are gone again
    assert path.read_bytes() == b"theirs"


def test_files_are_forced_to_disk_before_they_appear_and_the_entry_is_last(tmp_path, monkeypatch):
    order = []
    link = os.link

    def spy(source, target):
        assert not (tmp_path / "m").exists()
        order.append(Path(target).name)
        link(source, target)

    monkeypatch.setattr(publish.os, "link", spy)
    monkeypatch.setattr(publish.os, "fsync", lambda _: order.append("fsync"))
    finals = [tmp_path / name for name in ("m", "m.part-0001", "m.part-0002")]
    with published(finals) as files:
        for file in files:
            file.write(b"x")
        assert len(names(tmp_path)) == 3
        assert not any(final.exists() for final in finals)
    assert order == ["fsync"] * 3 + ["m.part-0002", "m.part-0001", "m"]
    assert names(tmp_path) == ["m", "m.part-0001", "m.part-0002"]


def test_two_writers_at_once_give_one_whole_set(tmp_path, formats, layouts):
    gate, failures = threading.Barrier(2), []

    def run(value: int) -> None:
        def image():
            gate.wait()
            return [(0, torch.full((8000,), value, dtype=torch.uint8))]

        try:
            with ArtifactWriter(
                tmp_path / "m.ninfer", components=TEXT, max_file_bytes=8192
            ) as writer:
                writer.add_tensor("w", (2000,), "fp32", "contiguous_le_v1", image, nbytes=8000)
                writer.bind("w", "w")
        except ArtifactError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 1
    assert names(tmp_path) == ["m.ninfer", "m.ninfer.part-0001"]
    store = load_weights(open_artifact(tmp_path / "m.ninfer"), formats=formats, layouts=layouts)
    assert len(store.weight("w").planes["codes"].view(torch.uint8).unique()) == 1


def test_a_link_to_nothing_is_a_file_in_the_way(tmp_path):
    (tmp_path / "m.ninfer").symlink_to("nowhere")
    with pytest.raises(ArtifactError, match="in the way"):
        ArtifactWriter(tmp_path / "m.ninfer", components=TEXT)


@pytest.mark.parametrize("name", ["file/m.ninfer", "x" * 250, "x" * 300])
def test_paths_that_cannot_be_are_refused_by_name(tmp_path, name):
    (tmp_path / "file").write_bytes(b"mine")
    with (
        pytest.raises(ArtifactError, match="cannot be written"),
        ArtifactWriter(tmp_path / name, components=TEXT) as writer,
    ):
        add(writer, "a")
    assert names(tmp_path) == ["file"]
