"""Progress on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from ninfer_core.cli.console import Console
from ninfer_perplexity.scores import Scores
from ninfer_perplexity.tokens import TokenizedText

INTERVAL_S = 10.0


class Progress:
    """Says how far a measurement is.

    :param total: targets of all texts.
    """

    def __init__(
        self, console: Console, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._total, self._clock = console, total, clock
        self._start = self._last = clock()
        self._done, self._nll = 0, 0.0

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def observe(self, text: TokenizedText, scores: Scores) -> None:
        """The next targets of a text are scored."""
        self._done, self._nll = self._done + len(scores.nll), self._nll + float(scores.nll.sum())
        perplexity = float(np.exp(self._nll / self._done))
        phase = f"{text.text.name}, perplexity of all so far {perplexity:.3f}"
        if sys.stderr.isatty():
            self._console.progress(phase, self._done, self._total)
        elif self._clock() >= self._last + INTERVAL_S:
            self._last = self._clock()
            speed = f"{self._done / self.seconds:.0f} tok/s"
            self._console.note(f"{self._done:,} of {self._total:,} tokens, {speed}: {phase}")
