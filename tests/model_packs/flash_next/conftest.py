"""Tiny checkpoints of the pack, converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from ninfer_convert.conversion import convert
from ninfer_core.api import ModelDescription
from ninfer_pack_flash_next.pack import FlashNextPack

PACK = FlashNextPack()


@pytest.fixture(scope="session")
def describe():
    """``(**changes to the text config) -> ModelDescription`` of Qwen3.8-Flash-Next."""
    stored = json.loads((Path(__file__).parent / "data" / "config.json").read_text())

    def made(**changes):
        config = {**stored, "text_config": {**stored["text_config"], **changes}}
        return ModelDescription("huggingface", tuple(stored["architectures"]), config)

    return made


@pytest.fixture(scope="session")
def real_config(describe):
    """Of Qwen3.8-Flash-Next, with its predictor."""
    return evolve(PACK.configure(describe()), mtp=True, split_ngram_parts=128)


@pytest.fixture(scope="session")
def convert_tiny(plugins, tiny_checkpoint, tmp_path_factory):
    """``(**options) -> (checkpoint, artifact)`` of a random checkpoint."""

    def run(**options):
        folder = tmp_path_factory.mktemp("flash_next")
        checkpoint = tiny_checkpoint(folder / "hf", "flash_next", **options)
        path = folder / "model.ninfer"
        convert(checkpoint.path, path, pack=PACK, registry=plugins.registry)
        return checkpoint, path

    return run


@pytest.fixture(scope="session")
def read(build_reader):
    """``(path, profile=False)`` to a reader of the model in an artifact."""
    return lambda path, **options: build_reader(PACK, path, **options)
