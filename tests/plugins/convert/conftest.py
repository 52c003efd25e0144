"""Checkpoints made on the spot, and the registry of the core with this plugin and the pack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from attrs import evolve
from safetensors.torch import save_file

from ninfer_convert.conversion import convert_checkpoint
from ninfer_convert.quantization import join_quantized
from ninfer_convert.safetensors_tensor import whole_tensor
from ninfer_convert.source import open_source
from ninfer_core.api import ImportedParameter, ImportPlan, ParameterSpec, StorageChoice
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins

Shards = Mapping[str, Mapping[str, torch.Tensor]]


@pytest.fixture(scope="session")
def plugins() -> PluginReport:
    modules = ("ninfer_convert.plugin", "ninfer_pack_smollm2.plugin")
    return load_plugins(PluginSelection(modules=modules, names=()))


TYPES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0", torch.int8: "I8",
    torch.int32: "I32",
}


class Slice:
    """What `safetensors.safe_open(...).get_slice` gives, without a file."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def get_shape(self) -> list[int]:
        return [*self.tensor.shape]

    def get_dtype(self) -> str:
        return TYPES[self.tensor.dtype]

    def __getitem__(self, index: object) -> torch.Tensor:
        return self.tensor[index].clone()


@pytest.fixture(scope="session")
def join() -> Callable[..., tuple[Mapping[str, object], Mapping[str, str]]]:
    """`join_quantized` of tensors by name; further names are members of the config."""

    def join_tensors(tensors: Mapping[str, torch.Tensor], **config: object):
        slices = {name: Slice(tensor) for name, tensor in tensors.items()}
        file = SimpleNamespace(get_tensor=tensors.get, get_slice=slices.get)
        return join_quantized({name: whole_tensor(name, file) for name in tensors}, config)

    return join_tensors


class TablePack:
    """A pack of the parameters in a table: name -> spec, tensor of the source, parent, bank.

    ``find`` gives the tensor out of the source's tensors. Parameters of a component are asked for
    if the model has it, and of the draft head (rows of ``head_width``) if it has that.
    """

    def __init__(self, *entries, components=("text",), resources=None, recipe=(), head_width=0):
        self.entries, self.components, self.recipe = entries, components, recipe
        self.resources, self.head_width = resources or {}, head_width

    def configure(self, model):
        return model.components

    def parameters(self, components):
        return tuple(self._parameters(components))

    def _parameters(self, components):
        for spec in (entry.spec for entry in self.entries):
            if spec.name.partition("/")[0] in components:
                inputs = tuple(i for i in spec.inputs if i.partition("/")[0] in components)
                yield evolve(spec, inputs=inputs)
        if (proposal := components.get("proposal")) and self.head_width:
            rows, used = proposal["rows"], ("text/final_hidden",)
            yield ParameterSpec("proposal/head", (rows, self.head_width), inputs=used)
            if proposal["domain"] == "indexed":
                yield ParameterSpec("proposal/token_ids", (rows,), "direct")

    def import_source(self, source):
        config = {"config": {"architectures": ["Table"]}}
        return ImportPlan(
            components=dict.fromkeys(self.components, config), resources=self.resources,
            parameters=tuple(self._import(each, source) for each in self.entries if each.find),
            ignored={}, recipe=self.recipe or (StorageChoice("*"),),
        )

    def _import(self, entry, source):
        def imported(spec, tensor):
            def rows(begin, end):
                shape = (end - begin, *spec.shape[1:])
                return imported(evolve(spec, shape=shape), tensor[begin:end])

            return ImportedParameter(
                spec, (tensor.name,), tensor.dense, tensor.parts, tensor.format, entry.parent,
                tensor.scalars, entry.bank, rows,
            )

        return imported(entry.spec, entry.find(source.tensors))


@pytest.fixture(scope="session")
def table_pack() -> type[TablePack]:
    return TablePack


@pytest.fixture(scope="session")
def entry() -> Callable[..., SimpleNamespace]:
    """A line of a `TablePack`; by default it is the source's tensor ``<last word>.weight``."""

    def make(name, shape, find=None, parent="", bank=False, **spec):
        last = f"{name.rpartition('/')[2]}.weight"
        find = None if spec.get("tied_to") else find or (lambda tensors: tensors[last])
        made = ParameterSpec(name, shape, **spec)
        return SimpleNamespace(spec=made, find=find, parent=parent, bank=bank)

    return make


@pytest.fixture
def converted(plugins, tmp_path) -> Callable[..., Path]:
    """Convert a directory to a file of the temporary directory."""

    def convert(source: Path, pack: TablePack, name: str = "out.ninfer", **options: object) -> Path:
        path = tmp_path / name
        convert_checkpoint(
            open_source(source), path, pack=pack, registry=plugins.registry, **options)
        return path

    return convert


@pytest.fixture(scope="session")
def load(plugins) -> Callable[[Path], WeightStore]:
    """Load all weights of an artifact."""
    formats = {name: each.spec for name, each in plugins.registry.formats.items()}
    layouts = {name: each.spec for name, each in plugins.registry.layouts.items()}
    return lambda path: load_weights(open_artifact(path), formats=formats, layouts=layouts)


@pytest.fixture
def write_directory(tmp_path: Path) -> Callable[..., Path]:
    """Write a Hugging Face directory: shards by file name, and an index unless it is None."""

    def write(
        shards: Shards, index: Mapping[str, str] | None, name: str = "checkpoint", **config: object
    ) -> Path:
        directory = tmp_path / name
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
