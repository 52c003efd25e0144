"""The table of a run, for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_perplexity.report import Report
from ninfer_perplexity.scores import Summary


def rows(made: Report) -> Iterator[tuple[str, ...]]:
    """A head, a line for each domain, and one for all."""
    compared = ("KL MEAN", "KL P99", "SAME TOP-1") if made.reference else ()
    yield "DOMAIN", "TEXTS", "TOKENS", "NLL", "PERPLEXITY", *compared
    for domain, summary in made.domains.items():
        yield _row(domain, sum(text.domain == domain for text in made.texts), summary)
    yield _row("overall", len(made.texts), made.overall)


def _row(name: str, num_texts: int, summary: Summary) -> tuple[str, ...]:
    row = [name, f"{num_texts:,}", f"{summary.targets:,}"]
    row += [f"{summary.nll:.5f}", f"{summary.perplexity:.4f}"]
    if summary.divergence is not None:
        row += [f"{summary.divergence:.6f}", f"{summary.divergence_p99:.6f}"]
    if summary.agreement is not None:
        row.append(f"{100 * summary.agreement:.2f} %")
    return tuple(row)
