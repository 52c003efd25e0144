"""A Hugging Face directory of safetensors as a source checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ninfer_convert.json_file import read_json
from ninfer_convert.quantization import join_quantized
from ninfer_convert.safetensors_tensor import whole_tensor
from ninfer_convert.shards import open_shards
from ninfer_convert.tensor_table import TensorTable
from ninfer_core.api import ArtifactError, ModelDescription

FRONTEND_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
    "preprocessor_config.json", "video_preprocessor_config.json",
)


class SafetensorsSource:
    """A checkpoint in a directory with ``config.json`` and safetensors.

    Quantised tensors (see `join_quantized`) have the names of their weights.

    :ivar stored: tensors as the files have them, codes and scales apart.
    :raises ArtifactError: naming every file or tensor that is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        config = read_json(directory / "config.json")
        names = config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ArtifactError("cannot read a file", where="config.json",
                                why=f"architectures is {names!r}, not a list of names")
        self.description = ModelDescription("huggingface", tuple(names), config)
        self.resources = _resources(directory, config)
        files = open_shards(directory)
        self.stored = {name: whole_tensor(name, file) for name, file in files.items()}
        tensors, self.ignored = join_quantized(self.stored, config)
        self.tensors = TensorTable(str(directory), tensors)


def _resources(directory: Path, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The frontend's files, with older habits brought to the present one: a template of its own
    file, and the ids that end an answer in ``generation_config.json``."""
    paths = {name: directory / name for name in FRONTEND_FILES}
    resources = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    if "tokenizer_config.json" in resources and not resources.get("chat_template.jinja"):
        template = _default_template(read_json(paths["tokenizer_config.json"]))
        resources["chat_template.jinja"] = template
    generation: dict[str, Any] = {}
    if "generation_config.json" in resources:
        generation = read_json(paths["generation_config.json"])
    if generation.get("eos_token_id") is None:
        generation["eos_token_id"] = config.get("eos_token_id")
        resources["generation_config.json"] = json.dumps(generation).encode()
    return {name: content for name, content in resources.items() if content}


def _default_template(tokenizer_config: Mapping[str, Any]) -> bytes:
    """The template, or the one called ``default`` of several; empty if there is none."""
    found = tokenizer_config.get("chat_template") or ""
    try:
        if isinstance(found, list):
            found = {each["name"]: each["template"] for each in found}.get("default", "")
        template: bytes = found.encode()
        return template
    except (AttributeError, KeyError, TypeError, UnicodeEncodeError) as error:
        why = f"chat_template is no text, nor a list of named ones ({error!r})"
        raise ArtifactError(
            "cannot read a file", where="tokenizer_config.json", why=why
        ) from error
