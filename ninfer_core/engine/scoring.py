"""The logprobs that requests ask for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from ninfer_core.engine.request import Logprobs, TokenLogprob
from ninfer_core.engine.sequence import Sequence as Request
from ninfer_core.sampling.logprobs import rank


def score_prompt(sequence: Request, logits: Tensor, first: int) -> Logprobs:
    """Of the tokens of a prompt that the rows predict, and before them of its very first.

    :param logits: fp32 ``[R, V]``, of the positions from ``first`` on, perhaps to the last.
    """
    tokens, most = sequence.tokens, sequence.request.prompt_logprobs or 0
    ids = tokens[first + 1 : min(first + 1 + len(logits), sequence.num_prompt)]
    found = [
        TokenLogprob(token, own, tuple(top))
        for token, (own, top) in zip(ids, rank(logits[: len(ids)], ids, most), strict=True)
    ]
    if not sequence.num_scored:
        found.insert(0, TokenLogprob(tokens[0], None))
    return Logprobs(tuple(found), of_prompt=True)


def score_output(
    sequences: Sequence[Request], logits: Tensor, num_rows: Sequence[int],
    candidates: Sequence[list[int]],
) -> list[tuple[TokenLogprob, ...]]:
    """Of the tokens that a step gives each request; nothing for those that do not ask.

    :param logits: fp32 ``[R, V]``: ``num_rows`` of each in order, whose first predict its tokens.
    """
    rows, ids, start = list[int](), list[int](), 0
    wanted = [each.request.logprobs for each in sequences]
    for most, count, given in zip(wanted, num_rows, candidates, strict=True):
        if most is not None:
            rows += range(start, start + len(given))
            ids += given
        start += count
    if not rows:
        return [()] * len(sequences)
    ranked = rank(logits[rows], ids, max(most or 0 for most in wanted))
    return [
        () if most is None else tuple(
            TokenLogprob(token, own, tuple(top[:most]))
            for token, (own, top) in zip(given, islice(ranked, len(given)), strict=True)
        )
        for most, given in zip(wanted, candidates, strict=True)
    ]
