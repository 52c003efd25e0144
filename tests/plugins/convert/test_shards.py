"""Safetensors directories: which file each tensor is read from, and what is refused by name."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from ninfer_convert.shards import open_shards
from ninfer_core.api import ArtifactError

ONES, ZEROS = torch.ones(2, 3), torch.zeros(2, 3)
TWO = {"a.safetensors": {"x": ONES}, "b.safetensors": {"y": ONES}}


def test_one_file_needs_no_index(write_directory):
    files = open_shards(write_directory({"model.safetensors": {"x": ONES, "y": ZEROS}}, None))
    assert files.keys() == {"x", "y"}


def test_index_is_an_allow_list_per_file(write_directory):
    """A stale copy in another shard does not replace the assigned one, whatever the order."""
    shards = {"a.safetensors": {"w": ZEROS, "x": ONES}, "b.safetensors": {"w": ONES}}
    files = open_shards(write_directory(shards, {"w": "b.safetensors", "x": "a.safetensors"}))
    assert torch.equal(files["w"].get_tensor("w"), ONES)


def test_tensors_outside_the_index_are_named_and_not_used(write_directory, caplog):
    shards = {"a.safetensors": {"x": ONES, "mtp.fc": ZEROS}}
    with caplog.at_level(logging.WARNING):
        files = open_shards(write_directory(shards, {"x": "a.safetensors"}))
    assert files.keys() == {"x"}
    assert "mtp.fc" in caplog.text


def test_all_missing_files_are_named(write_directory):
    index = {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors"}
    directory = write_directory({"a.safetensors": {"x": ONES}}, index)
    with pytest.raises(ArtifactError, match=r"files are missing.*b\.safetensors, c\.safetensors"):
        open_shards(directory)


def test_missing_tensors_are_named(write_directory):
    index = {"x": "a.safetensors", "z": "b.safetensors"}
    with pytest.raises(ArtifactError, match=r"tensors are missing.*z \(b\.safetensors\)"):
        open_shards(write_directory(TWO, index))


def test_several_files_without_an_index_are_ambiguous(write_directory):
    with pytest.raises(ArtifactError, match=r"found a\.safetensors, b\.safetensors"):
        open_shards(write_directory(TWO, None))


def test_two_indexes_are_ambiguous(write_directory):
    directory = write_directory(TWO, {"x": "a.safetensors"})
    (directory / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"found model.*index\.json, other"):
        open_shards(directory)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_empty_index_is_refused(write_directory, index):
    directory = write_directory(TWO, {"x": "a.safetensors"})
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ArtifactError, match="the index is empty"):
        open_shards(directory)


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/a.safetensors", "", 7])
def test_files_outside_the_directory_are_refused(write_directory, file):
    directory = write_directory(TWO, {"x": file})
    with pytest.raises(ArtifactError, match="not plain names"):
        open_shards(directory)


@pytest.mark.parametrize("file", ["..", "x" * 400, "a\0b"])
def test_files_that_cannot_be_are_missing(write_directory, file):
    with pytest.raises(ArtifactError, match="files are missing"):
        open_shards(write_directory(TWO, {"x": file}))


def test_a_name_given_twice_in_the_index_is_refused(write_directory):
    directory = write_directory(TWO, {"x": "a.safetensors"})
    twice = '{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}'
    (directory / "model.safetensors.index.json").write_text(twice)
    with pytest.raises(ArtifactError, match="repeated names: x"):
        open_shards(directory)


@pytest.mark.parametrize("cut", [-1, -20, 12])
def test_a_truncated_file_is_refused(write_directory, cut):
    path = write_directory({"model.safetensors": {"x": ONES}}, None) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArtifactError, match=r"damaged \[model\.safetensors\]"):
        open_shards(path.parent)


def test_a_header_that_lies_about_sizes_is_refused(write_directory):
    path = write_directory({"model.safetensors": {"x": ONES}}, None) / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["x"]["shape"] = [2, 4]
    text = json.dumps(header).encode().ljust(size)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    with pytest.raises(ArtifactError, match="damaged"):
        open_shards(path.parent)
