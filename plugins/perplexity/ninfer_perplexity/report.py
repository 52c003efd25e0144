"""The report of a run: what was measured, on what, how; unrounded, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cattrs
from attrs import frozen

from ninfer_core.api import ConfigError
from ninfer_perplexity.scores import Summary

FILE = "report.json"
SCHEMA = "ninfer-perplexity/1"


@frozen
class ModelFacts:
    """:ivar formats: role of parameters (``text/layers/*/mlp/down``) -> format -> how many.
    :ivar kernels: op -> kernels."""

    name: str
    artifact_id: str
    architectures: tuple[str, ...]
    pack: str
    formats: Mapping[str, Mapping[str, int]]
    kernels: Mapping[str, tuple[str, ...]]


@frozen
class Settings:
    """:ivar vocab_size: tokens that probabilities are over."""

    context: int
    stride: int
    vocab_size: int
    kv_dtype: str
    profile: str
    compute_dtype: str
    step_tokens: int
    step_logits: int


@frozen
class WindowResult:
    """Tokens ``begin:end`` with the targets ``first:end``; ``nll`` is their sum in nats."""

    begin: int
    first: int
    end: int
    nll: float


@frozen
class TextResult:
    """:ivar sha256: of the file. :ivar tokens_sha256: of the ids as little-endian int64."""

    name: str
    domain: str
    sha256: str
    tokens: int
    tokens_sha256: str
    summary: Summary
    windows: tuple[WindowResult, ...]


@frozen(kw_only=True)
class Report:
    """:ivar date: of the end, ISO 8601. :ivar seconds: of the measurement, without the load.
    :ivar log_probs: name of the file beside the report, or None.
    :ivar reference: path of the report that was compared with, or None."""

    schema: str = SCHEMA
    version: str
    date: str
    seconds: float
    corpus: str
    model: ModelFacts
    settings: Settings
    texts: tuple[TextResult, ...]
    domains: Mapping[str, Summary]
    overall: Summary
    log_probs: str | None
    reference: str | None


_converter = cattrs.Converter()


def dump(report: Report) -> bytes:
    """The report as JSON."""
    return (json.dumps(_converter.unstructure(report), indent=1) + "\n").encode()


def load(path: Path) -> tuple[Report, Path]:
    """A report, given its path or its directory, and its own path.

    :raises ConfigError: if it is none.
    """
    path = path / FILE if path.is_dir() else path
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        if raw.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {raw.get('schema')!r}, not {SCHEMA!r}")
        return _converter.structure(raw, Report), path
    except (OSError, ValueError, AttributeError, cattrs.BaseValidationError) as error:
        why = str(error)
        if isinstance(error, cattrs.BaseValidationError):
            why = "; ".join(cattrs.transform_error(error, "report"))
        raise ConfigError("cannot read the reference", where=str(path), why=why) from error


def differences(
    theirs: Report, settings: Settings, tokens: Mapping[str, tuple[str, int, str]]
) -> Iterator[str]:
    """Why a run cannot be compared with a reference: everything that must be equal and is not.

    :param tokens: name of a text -> its file's digest, its number of tokens, and their digest.
    """
    for name in ("context", "stride", "vocab_size"):
        there, here = getattr(theirs.settings, name), getattr(settings, name)
        if there != here:
            yield f"{name} is {there} there and {here} here"
    texts = {text.name: text for text in theirs.texts}
    if [*texts] != [*tokens]:
        yield f"texts are {', '.join(texts)} there and {', '.join(tokens)} here"
        return
    for name, (sha256, num_tokens, digest) in tokens.items():
        text = texts[name]
        if text.sha256 != sha256:
            yield f"text {name} has another content"
        elif (text.tokens, text.tokens_sha256) != (num_tokens, digest):
            yield (f"tokenizer differs: text {name} is {text.tokens} tokens there and {num_tokens} "
                   "here" + ", not the same" * (text.tokens == num_tokens))
