"""The measurement of one text: its windows, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen

from ninfer_core.api import NInferError
from ninfer_perplexity.log_probs import LogProbReader, LogProbWriter
from ninfer_perplexity.report import TextResult, WindowResult
from ninfer_perplexity.scorer import Scorer
from ninfer_perplexity.scores import Scores, join, score, summarize
from ninfer_perplexity.tokens import TokenizedText
from ninfer_perplexity.windows import Window, windows


@frozen(eq=False)
class Measurement:
    """How texts are measured.

    :ivar reference: what to compare with, or None. :ivar log_probs: what keeps them, or None.
    :ivar observe: called with the scores of every few targets.
    """

    scorer: Scorer
    context: int
    stride: int
    reference: LogProbReader | None
    log_probs: LogProbWriter | None
    observe: Callable[[TokenizedText, Scores], None]

    def text(self, text: TokenizedText) -> tuple[TextResult, Scores]:
        """Measure all targets of a text.

        :raises NInferError: if the model's logits are not finite.
        """
        spans = [*windows(len(text.ids), self.context, self.stride)]
        scores = [self._window(text, window) for window in spans]
        results = tuple(
            WindowResult(span.begin, span.first, span.end, float(part.nll.sum()))
            for span, part in zip(spans, scores, strict=True)
        )
        whole = join(scores)
        return TextResult(
            text.text.name, text.text.domain, text.text.sha256, len(text.ids), text.sha256,
            summarize(whole), results,
        ), whole

    def _window(self, text: TokenizedText, window: Window) -> Scores:
        parts: list[Scores] = []
        at = window.first - 1  # the row of target t is t - 1
        for block in self.scorer.blocks(text.ids, window):
            end = at + len(block.targets)
            name = text.text.name
            theirs = self.reference.rows(name, at, end) if self.reference else None
            parts.append(score(block, theirs))
            if not np.isfinite(parts[-1].nll).all():
                where = f"{name}, tokens {at + 1} to {end}"
                raise NInferError("the model failed", where=where, why="a loss is not finite")
            if self.log_probs:
                self.log_probs.write(block.log_probs)
            self.observe(text, parts[-1])
            at = end
        return join(parts)
