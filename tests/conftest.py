"""What tests of several parts share: skeletons of plugins, a tiny model, the command on them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from ninfer_conformance.subject import find_subject, tiny_resources
from ninfer_core.artifact.writer import ArtifactWriter
from ninfer_core.cli import plugins as command_plugins
from ninfer_core.cli.main import main
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_workbench.new import write_skeleton

settings.register_profile("ninfer", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("ninfer")

SKELETONS = {
    "model-pack": ("skeleton-pack", "ninfer_pack_skeleton_pack"),
    "hardware-profile": ("skeleton_profile", "ninfer_profile_skeleton_profile"),
    "plugin": ("skeleton_plugin", "ninfer_plugin_skeleton_plugin"),
}
"""Kind -> name and import package."""


@pytest.fixture(autouse=True)
def end_of_process():
    """A command sets log levels and keeps plugins for its process; here they end with the test."""
    loggers = [logging.getLogger(), logging.getLogger("ninfer_core")]
    levels = [logger.level for logger in loggers]
    command_plugins._load.cache_clear()
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


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
    modules = (skeletons["model-pack"], skeletons["hardware-profile"], "ninfer_workbench.plugin")
    plugins = [word for module in modules for word in ("-p", module)]

    def ninfer(*arguments):
        code = main([*map(str, arguments), *plugins, "--profile", "skeleton_profile"])
        return code, *capsys.readouterr()

    return ninfer
