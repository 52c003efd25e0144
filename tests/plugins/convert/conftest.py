"""Checkpoints made on the spot, and the registry of the core with this plugin and the pack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins

Shards = Mapping[str, Mapping[str, torch.Tensor]]


@pytest.fixture(scope="session")
def plugins() -> PluginReport:
    modules = ("ninfer_convert.plugin", "ninfer_pack_smollm2.plugin")
    return load_plugins(PluginSelection(modules=modules, names=()))


@pytest.fixture
def write_directory(tmp_path: Path) -> Callable[..., Path]:
    """Write a Hugging Face directory: shards by file name, and an index unless it is None."""

    def write(shards: Shards, index: Mapping[str, str] | None, **config: object) -> Path:
        directory = tmp_path / "checkpoint"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        for name, tensors in shards.items():
            save_file(dict(tensors), directory / name)
        if index is not None:
            text = json.dumps({"metadata": {}, "weight_map": dict(index)})
            (directory / "model.safetensors.index.json").write_text(text)
        return directory

    return write


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file: metadata (text, ints, floats, lists) and tensors as (values, type)."""

    def write(
        metadata: Mapping[str, object],
        tensors: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType]],
        architecture: str = "llama",
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            _add(writer, key, value)
        for name, (values, kind) in tensors.items():
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
