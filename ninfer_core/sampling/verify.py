"""Which drafts of a speculative round are kept, and the token that follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.sampling.sampler import INVALID, Sampler, draw


@frozen(eq=False)
class Drafted:
    """Drafts of one sequence.

    :ivar rows: of the positions of the n drafts and of the one after them.
    :ivar proposals: ``[n, V]``, distributions the drafts were drawn from; None if they were not
        drawn (greedy or looked up).
    """

    rows: tuple[SampleRow, ...]
    drafts: tuple[int, ...]
    proposals: Tensor | None = None

    @classmethod
    def cut(
        cls, row: Callable[[tuple[int, ...]], SampleRow], drafts: Sequence[int] = (),
        proposals: Tensor | None = None,
    ) -> Self:
        """Drafts up to the first that a mask forbids.

        :param row: of the token after some drafts; each of them is allowed.
        """
        kept: tuple[int, ...] = ()
        rows = [row(kept)]
        for token in drafts:
            if not rows[-1].allows(token):
                break
            kept = (*kept, token)
            rows.append(row(kept))
        cut = None if proposals is None or not kept else proposals[: len(kept)]
        return cls(tuple(rows), kept, cut)


@frozen
class Verdict:
    """The first ``accepted`` drafts are kept and ``token`` follows; `INVALID` fails the request."""

    accepted: int
    token: int


class Judge(Sampler):
    """Draws tokens and judges drafts: what the op ``sampling`` is bound to.

    :cvar waits: whether drawing makes the host wait for the device.
    """

    waits = True

    def is_prompt(self, row: SampleRow, vocab_size: int) -> bool:
        """Whether `sample` draws a row, which is free, without making the host wait."""
        return not self.waits

    def propose(self, logits: Tensor, rows: Sequence[SampleRow]) -> tuple[Tensor, Tensor | None]:
        """Drafts int64 ``[R]`` for fp32 logits ``[R, V]``, `INVALID` where there is none, and where
        a row is not greedy, the distributions fp64 ``[R, V]`` they are drawn from by ids."""
        if all(row.params.temperature == 0 for row in rows):
            return self.sample(logits, rows), None
        proposals = self.probabilities(logits, rows)
        tokens = draw(proposals, [evolve(row, purpose=Purpose.PROPOSAL) for row in rows])
        return tokens.masked_fill_(~proposals.any(-1), INVALID), proposals

    def accept(self, tokens: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts of each greedy sequence are kept, int64 ``[S]``, on the device.

        :param tokens: int64 ``[S, n + 1]``, what `likeliest` has made of their rows.
        :param drafts: int64 ``[S, n]``.
        """
        return (tokens[:, :-1] == drafts).cumprod(-1).sum(-1)

    def verify(
        self, logits: Tensor, drafted: Sequence[Drafted], likeliest: Tensor | None = None
    ) -> list[Verdict]:
        """Judge the drafts of several sequences; ``logits`` fp32 holds all their rows in order, and
        ``likeliest`` is what `likeliest` has made of them.

        Drafts that were not drawn are kept while they equal what the sampler draws at their
        position anyway. That is rejection sampling for a one-hot proposal, and a seed gives the
        same text with and without speculation. Drafts drawn from ``proposals`` are kept with
        probability ``min(1, p / q)`` and corrected from ``max(p - q, 0)`` (Leviathan, Kalman and
        Matias, 2023). Both preserve the target distribution; greedy rows keep the longest match.
        """
        rows = [row for each in drafted for row in each.rows]
        tokens = self.sample(logits, rows).tolist()
        drawn = any(each.proposals is not None for each in drafted)
        target = self.probabilities(logits, rows) if drawn else logits
        verdicts, start = [], 0
        for each in drafted:
            span = slice(start, start + len(each.rows))
            if each.proposals is None or each.rows[0].params.temperature == 0:
                verdicts.append(match(each.drafts, tokens[span]))
            else:
                verdicts.append(_reject(target[span], each.proposals.double(), each))
            start = span.stop
        return verdicts


def bind(request: KernelRequest) -> Judge:
    """The reference of the op ``sampling``."""
    return Judge()


def match(drafts: Sequence[int], tokens: Sequence[int]) -> Verdict:
    """Drafts are kept while they are the tokens."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == tokens[accepted]:
        accepted += 1
    return Verdict(accepted, tokens[accepted])


def _reject(target: Tensor, proposal: Tensor, drafted: Drafted) -> Verdict:
    """``target`` p ``[n + 1, V]``, ``proposal`` q ``[n, V]``, both FP64."""
    for i, token in enumerate(drafted.drafts):
        row, p, q = drafted.rows[i], target[i], proposal[i]
        chance = uniform(row.params.seed, row.position, Purpose.ACCEPT)
        if not chance * float(q[token]) < float(p[token]):  # nor where q is no number
            residual = torch.where(p > q, p - q, 0)
            # without a residual, p equals q but for rounding
            return Verdict(i, _draw(residual if residual.any() else p, row, Purpose.CORRECTION))
    return Verdict(len(drafted.drafts), _draw(target[-1], drafted.rows[-1], Purpose.BONUS))


def _draw(weights: Tensor, row: SampleRow, purpose: Purpose) -> int:
    if not weights.any():
        return INVALID
    return int(draw(weights.unsqueeze(0), [evolve(row, purpose=purpose)]))
