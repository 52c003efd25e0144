"""Llama checkpoints, converted and built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_convert.conversion import convert
from ninfer_core.plugin_host import PluginReport
from ninfer_pack_smollm2.pack import LlamaPack


@pytest.fixture(scope="session")
def read(build_reader):
    """``(path, profile=False)`` to a reader of the model in an artifact."""
    return lambda path, **options: build_reader(LlamaPack(), path, **options)


@pytest.fixture
def convert_to(plugins: PluginReport, tmp_path: Path) -> Callable[..., Path]:
    """Convert a checkpoint, by the pack's recipe or another; gives the artifact."""

    def run(source: Path, recipe=None) -> Path:
        path = tmp_path / "model.ninfer"
        convert(source, path, pack=LlamaPack(), registry=plugins.registry, recipe=recipe)
        return path

    return run
