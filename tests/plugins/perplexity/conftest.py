"""The command on a tiny random model, with nothing installed but what it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

TEXT = (
    "A byte is a token here, so this text of a few sentences gives some windows. "
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Again and again and again."
)


@frozen
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def perplexity(ninfer, tiny_model) -> Callable[..., Outcome]:
    """``(*arguments, model=...)``: what the command does with the tiny model."""

    def run(*arguments: object, model: Path = tiny_model) -> Outcome:
        plugin = "-p", "ninfer_perplexity.plugin"
        return Outcome(*ninfer("perplexity", model, *arguments, *plugin))

    return run


@pytest.fixture
def measure(perplexity, tmp_path) -> Callable[..., dict]:
    """``(*arguments, output=...)``: the report of a run that must succeed."""

    def run(*arguments: object, output: str = "output", **options: object) -> dict:
        outcome = perplexity(*arguments, "--output", tmp_path / output, **options)
        assert outcome.code == 0, outcome.err
        report: dict = json.loads((tmp_path / output / "report.json").read_text())
        return report

    return run
