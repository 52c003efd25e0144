"""The safetensors directory as a source: tensors by name, and the frontend's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError

VALUES = torch.tensor([[1.0, -2.5], [3.0, 0.125]])


@pytest.mark.parametrize(
    ("dtype", "name", "format_name"),
    [
        (torch.float32, "F32", "fp32"), (torch.float16, "F16", "fp32"),
        (torch.bfloat16, "BF16", "bf16"),
    ],
)
def test_dense_types_are_held_exactly(write_directory, dtype, name, format_name):
    source = open_source(write_directory({"m.safetensors": {"x": VALUES.to(dtype)}}, None))
    tensor = source.tensors["x"]
    assert (tensor.dtype, tensor.shape, tensor.format) == (name, (2, 2), format_name)
    assert torch.equal(tensor.dense(), VALUES)
    assert torch.equal(tensor.parts()["codes"].float(), VALUES)


def test_other_types_are_refused_when_read(write_directory):
    source = open_source(write_directory({"m.safetensors": {"x": VALUES.to(torch.int8)}}, None))
    with pytest.raises(ArtifactError, match=r"\[x\]: it is I8"):
        source.tensors["x"].dense()


def test_an_absent_tensor_is_named(write_directory):
    source = open_source(write_directory({"m.safetensors": {"x": VALUES}}, None))
    with pytest.raises(ArtifactError, match=r"lacks a tensor.*'model\.norm\.weight'"):
        source.tensors["model.norm.weight"]


def test_description_is_the_config(write_directory):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None, architectures=["A"], size=7)
    description = open_source(directory).description
    assert (description.origin, description.architectures) == ("huggingface", ("A",))
    assert description.config["size"] == 7


@pytest.mark.parametrize(
    "template",
    ["hello", [{"name": "x", "template": "no"}, {"name": "default", "template": "hello"}]],
)
def test_a_template_inside_the_tokenizer_config_gets_its_own_resource(write_directory, template):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None, eos_token_id=[5, 6])
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    resources = open_source(directory).resources
    assert resources["chat_template.jinja"] == b"hello"
    assert json.loads(resources["generation_config.json"]) == {"eos_token_id": [5, 6]}


def test_files_of_their_own_win(write_directory):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None, eos_token_id=5)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (directory / "chat_template.jinja").write_text("new")
    (directory / "generation_config.json").write_text('{"eos_token_id": 9}')
    resources = open_source(directory).resources
    assert resources["chat_template.jinja"] == b"new"
    assert resources["generation_config.json"] == b'{"eos_token_id": 9}'


@pytest.mark.parametrize("text", ["", "[1]", "{nope}", '{"a": 1, "a": 2}'])
def test_a_broken_config_is_refused(write_directory, text):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None)
    (directory / "config.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"config\.json"):
        open_source(directory)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ArtifactError, match="not a source checkpoint"):
        open_source(tmp_path / "notes.txt")


@pytest.mark.parametrize("names", [5, "LlamaForCausalLM", {"a": 1}, [5], [["a"]], [None]])
def test_architectures_are_a_list_of_names(write_directory, names):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None, architectures=names)
    with pytest.raises(ArtifactError, match=r"config\.json.*architectures"):
        open_source(directory)


@pytest.mark.parametrize(
    "template", [5, {"default": "x"}, ["x"], [{"name": "x"}], [{"name": []}], "\ud800"]
)
def test_an_odd_template_is_refused(write_directory, template):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json.*chat_template"):
        open_source(directory)


def test_empty_files_count_as_absent(write_directory):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None)
    (directory / "chat_template.jinja").touch()
    (directory / "tokenizer_config.json").write_text('{"chat_template": ""}')
    assert "chat_template.jinja" not in open_source(directory).resources


@pytest.mark.parametrize("text", ["{}", '{"eos_token_id": null}'])
def test_an_end_that_the_generation_config_lacks_is_that_of_the_config(write_directory, text):
    directory = write_directory({"m.safetensors": {"x": VALUES}}, None, eos_token_id=5)
    (directory / "generation_config.json").write_text(text)
    generation = open_source(directory).resources["generation_config.json"]
    assert json.loads(generation) == {"eos_token_id": 5}


def test_a_path_that_cannot_be_is_no_checkpoint():
    with pytest.raises(ArtifactError, match="not a source checkpoint"):
        open_source(Path("x" * 400))
