"""Tiny checkpoints of both packs, converted."""

from __future__ import annotations

import pytest

from ninfer_convert.conversion import convert
from ninfer_pack_qwen_dense.pack import QwenDensePack
from ninfer_pack_qwen_moe.pack import QwenMoePack

PACKS = {"dense": QwenDensePack(), "moe": QwenMoePack()}


@pytest.fixture(scope="session")
def convert_tiny(plugins, tiny_checkpoint, tmp_path_factory):
    """``(kind, recipe=None, **options) -> (checkpoint, artifact)`` of a random checkpoint."""

    def run(kind, recipe=None, **options):
        folder = tmp_path_factory.mktemp(kind)
        checkpoint = tiny_checkpoint(folder / "hf", kind, **options)
        path = folder / "model.ninfer"
        convert(checkpoint.path, path, pack=PACKS[kind], registry=plugins.registry, recipe=recipe)
        return checkpoint, path

    return run


@pytest.fixture(scope="session")
def read(build_reader):
    """``(kind, path, profile=False)`` to a reader of the model in an artifact."""
    return lambda kind, path, **options: build_reader(PACKS[kind], path, **options)
