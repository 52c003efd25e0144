"""The command on benchmarks of the tiny Qwen model and the CPU profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ninfer_bench import ops, stepping
from ninfer_conformance.subject import find_subject
from ninfer_core.cli.main import main
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.tiny import TinyModel, tiny_resources

PACK = "ninfer_pack_qwen_dense.plugin"


@pytest.fixture
def once(monkeypatch):
    """What is timed runs once, on one thread: several wait for one another on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(stepping, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(stepping, "MIN_RUNS", 1)
    monkeypatch.setattr(stepping, "WARM_UP", 1)
    monkeypatch.setattr(ops, "SECONDS", 0.0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bench(monkeypatch, capsys) -> Callable[..., tuple[int, Any]]:
    """``(*arguments) -> (exit code, the object it prints)``."""
    monkeypatch.setenv("NINFER_PLUGINS", "bench,cpu,qwen_dense")

    def bench(*arguments: object) -> tuple[int, Any]:
        code = main(["bench", *map(str, arguments), "--json", "--log-level", "error"])
        out, err = capsys.readouterr()
        assert "{" in out, err
        return code, json.loads(out)

    return bench


@pytest.fixture(scope="module")
def predicting_model(tmp_path_factory):
    """A tiny model with a predictor."""
    report = load_plugins(PluginSelection(modules=(PACK,), names=()))
    subject = find_subject(report, "qwen_dense")
    tiny = TinyModel(
        subject.model, subject.implementation.parameters(subject.config), report.registry)
    path = tmp_path_factory.mktemp("predicting") / "tiny.ninfer"
    tiny.write(path, tiny.random_values(), texts=tiny_resources())
    return path
