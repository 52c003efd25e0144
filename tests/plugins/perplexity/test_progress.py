"""Progress where there is no terminal."""

import numpy as np

from ninfer_core.cli.console import Console
from ninfer_perplexity.corpus import Text
from ninfer_perplexity.progress import Progress
from ninfer_perplexity.scores import Scores
from ninfer_perplexity.tokens import TokenizedText


def test_a_line_every_ten_seconds(capsys):
    now, text = [0.0], TokenizedText(Text("t", "d", "", ""), np.zeros(2), "")
    progress = Progress(Console("info"), 400, clock=lambda: now[0])
    for second in range(1, 26):
        now[0] = float(second)
        progress.observe(text, Scores(np.zeros(10)))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["100 of 400 tokens, 10 tok/s: t, perplexity of all so far 1.000",
                     "200 of 400 tokens, 10 tok/s: t, perplexity of all so far 1.000"]
    assert progress.seconds == 25
