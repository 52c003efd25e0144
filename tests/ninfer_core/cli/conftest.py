"""Skeletons to run, and a registry whose checkpoint and converter are tiny fakes."""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from attrs import frozen

from ninfer_core.api import ArtifactError, ConverterSpec, EmbeddedModel, ModelPackSpec
from ninfer_core.artifact.writer import ArtifactWriter
from ninfer_core.cli.main import main
from ninfer_core.cli.new import write_skeleton
from ninfer_core.plugin_host import (
    PluginSelection,
    Provenance,
    Registered,
    Registry,
    load_plugins,
)
from ninfer_core.testing.subject import find_subject, tiny_resources

CONTENT = b"weights"
SKELETONS = {
    "model-pack": ("skeleton-pack", "ninfer_pack_skeleton_pack"),
    "hardware-profile": ("skeleton_profile", "ninfer_profile_skeleton_profile"),
    "plugin": ("skeleton_plugin", "ninfer_plugin_skeleton_plugin"),
}
"""Kind -> name and import package."""


@pytest.fixture(autouse=True)
def log_levels():
    """A command sets levels for its process; here they end with the test."""
    loggers = [logging.getLogger(), logging.getLogger("ninfer_core")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@frozen
class Fakes:
    """:ivar calls: destinations the converter was called with. :ivar source: the checkpoint."""

    registry: Registry
    calls: list[Path]
    source: Path


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> Fakes:
    source, calls = tmp_path / "tiny.gguf", []

    def locate():
        if not source.exists():
            raise ArtifactError("absent", fix="ninfer fetch tiny")
        return source

    def convert(given, destination, *, pack, registry, recipe=None, progress=None):
        calls.append(destination)
        progress("converting", 1, 1)
        destination.write_bytes(given.read_bytes())

    module = ModuleType("fake_parts")
    module.locate, module.convert, module.Pack = locate, convert, object
    monkeypatch.setitem(sys.modules, "fake_parts", module)
    monkeypatch.setenv("NINFER_CACHE", str(tmp_path / "cache"))
    model = EmbeddedModel(
        "tiny", "fake_parts:locate", "tiny-weights==1.0", hashlib.sha256(CONTENT).hexdigest(),
        "Apache-2.0", default=True,
    )
    origin = Provenance("fake-pack", "7", "fake", "fake.plugin")
    pack = ModelPackSpec("fake", "fake_parts:Pack", "fake_parts:Pack", (model,))
    converter = ConverterSpec("convert", "fake_parts:convert")
    registry = Registry(
        packs={"fake": Registered(pack, origin)}, profiles={}, kernels={}, formats={}, layouts={},
        kv_codecs={}, speculators={}, converters={"convert": Registered(converter, origin)},
    )
    source.write_bytes(CONTENT)
    return Fakes(registry, calls, source)


@pytest.fixture(scope="session")
def skeletons(tmp_path_factory) -> dict[str, str]:
    """A skeleton of each kind, importable: kind -> plugin module."""
    folder = tmp_path_factory.mktemp("skeletons")
    with pytest.MonkeyPatch.context() as patch:
        for kind in SKELETONS:
            patch.syspath_prepend(write_skeleton(kind, SKELETONS[kind][0], folder))
        yield {kind: f"{package}.plugin" for kind, (_, package) in SKELETONS.items()}


@pytest.fixture(scope="session")
def write_model(skeletons, tmp_path_factory):
    """``(change) -> path`` of a tiny random model of the skeleton pack, with its values changed."""
    subject = find_subject(
        load_plugins(PluginSelection(modules=(skeletons["model-pack"],), names=())), "skeleton_pack"
    )
    generator = torch.Generator().manual_seed(7)
    values = {
        spec.name: torch.randn(spec.shape, generator=generator) / spec.shape[-1] ** 0.5
        for spec in subject.implementation.parameters(subject.config)
    }

    def write(change=lambda values: values):
        path = tmp_path_factory.mktemp("model") / "tiny.ninfer"
        config = {"config": subject.model.config}
        with ArtifactWriter(path, components={"text": config}) as writer:
            for role, content in tiny_resources().items():
                writer.add_resource(role, content)
            for name, each in change(values).items():
                image = each.flatten().view(torch.uint8)
                writer.add_tensor(name, each.shape, "fp32", "contiguous_le_v1", image)
                writer.bind(name, name)
        return path

    return write


@pytest.fixture(scope="session")
def tiny_model(write_model) -> Path:
    return write_model()


@pytest.fixture
def ninfer(skeletons, monkeypatch, capsys):
    """``(*arguments) -> (exit code, stdout, stderr)`` with the skeleton pack and profile alone."""
    monkeypatch.setenv("NINFER_PLUGINS", "")
    plugins = ["-p", skeletons["model-pack"], "-p", skeletons["hardware-profile"]]

    def ninfer(*arguments):
        code = main([*map(str, arguments), *plugins, "--profile", "skeleton_profile"])
        return code, *capsys.readouterr()

    return ninfer
