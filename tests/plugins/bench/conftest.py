"""The command on benchmarks of the tiny Qwen model and the CPU profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ninfer_core.cli.main import main


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
