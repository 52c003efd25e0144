"""A registry whose checkpoint and converter are tiny fakes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from attrs import frozen

from ninfer_core.api import ArtifactError, ConverterSpec, EmbeddedModel, ModelPackSpec
from ninfer_core.plugin_host import Provenance, Registered, Registry

CONTENT = b"weights"
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
        packs={"fake": Registered(pack, origin)},
        converters={"convert": Registered(converter, origin)},
        profiles={}, ops={}, kernels={}, formats={}, layouts={}, kv_codecs={}, speculators={},
        commands={}, constraints={}, state_tiers={}, protocols={},
    )
    source.write_bytes(CONTENT)
    return Fakes(registry, calls, source)


