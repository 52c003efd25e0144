"""Another run to compare with: its report, and its log probabilities beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from ninfer_core.api import ConfigError
from ninfer_perplexity import report
from ninfer_perplexity.log_probs import LogProbReader
from ninfer_perplexity.report import Report, Settings
from ninfer_perplexity.tokens import TokenizedText


@frozen(eq=False)
class Reference:
    """:ivar path: of the report."""

    path: Path
    report: Report
    log_probs: LogProbReader


def open_reference(path: Path) -> Reference:
    """Open a run that kept its log probabilities.

    :param path: of its report, or of the directory with it.
    :raises ConfigError: if there is none, or it kept none.
    """
    read, path = report.load(path)
    if read.log_probs is None:
        raise ConfigError(
            "the reference has no log probabilities", where=str(path),
            fix="measure it again with --save-logits",
        )
    return Reference(path, read, LogProbReader(path.with_name(read.log_probs)))


def require_same(
    reference: Reference, settings: Settings, texts: Sequence[TokenizedText]
) -> None:
    """Raise `ConfigError`, with every difference, unless a run measures what the reference did."""
    tokens = {each.text.name: (each.text.sha256, len(each.ids), each.sha256) for each in texts}
    if found := [*report.differences(reference.report, settings, tokens)]:
        raise ConfigError(
            "the reference measured something else", where=str(reference.path),
            why="; ".join(found), fix="measure both with the same texts, --context and --stride",
        )
