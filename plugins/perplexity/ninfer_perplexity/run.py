"""A whole measurement, and the report of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from attrs import frozen

from ninfer_core import __version__
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan
from ninfer_core.engine.load import LoadedModel
from ninfer_perplexity import log_probs
from ninfer_perplexity.facts import model_facts
from ninfer_perplexity.log_probs import LogProbWriter
from ninfer_perplexity.measure import Measurement
from ninfer_perplexity.progress import Progress
from ninfer_perplexity.reference import Reference
from ninfer_perplexity.report import Report, Settings, TextResult
from ninfer_perplexity.scorer import Scorer
from ninfer_perplexity.scores import Scores, join, summarize
from ninfer_perplexity.tokens import TokenizedText


@frozen(eq=False)
class Run:
    """What is measured, on what, how."""

    plan: EnginePlan
    loaded: LoadedModel
    corpus: str
    texts: Sequence[TokenizedText]
    settings: Settings
    reference: Reference | None
    log_probs: LogProbWriter | None


def measure(run: Run, console: Console) -> Report:
    """Measure all texts; says on the console how far it is, and what came of each."""
    progress = Progress(console, sum(len(text.ids) - 1 for text in run.texts))
    measurement = Measurement(
        Scorer(run.plan, run.loaded), run.settings.context, run.settings.stride,
        run.reference.log_probs if run.reference else None, run.log_probs, progress.observe,
    )
    results: list[TextResult] = []
    scores: list[Scores] = []
    for text in run.texts:
        result, each = measurement.text(text)
        results.append(result)
        scores.append(each)
        console.note(f"{result.name}: perplexity {result.summary.perplexity:.4f} of "
                     f"{result.summary.targets:,} tokens in {len(result.windows)} windows")
    return _report(run, results, scores, progress.seconds)


def _report(
    run: Run, results: Sequence[TextResult], scores: Sequence[Scores], seconds: float
) -> Report:
    domains: dict[str, list[Scores]] = {}
    for result, each in zip(results, scores, strict=True):
        domains.setdefault(result.domain, []).append(each)
    return Report(
        version=__version__, date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds, corpus=run.corpus, model=model_facts(run.plan, run.loaded.kernels),
        settings=run.settings, texts=tuple(results),
        domains={name: summarize(join(parts)) for name, parts in domains.items()},
        overall=summarize(join(scores)), log_probs=log_probs.FILE if run.log_probs else None,
        reference=str(run.reference.path) if run.reference else None,
    )
