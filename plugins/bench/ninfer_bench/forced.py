"""Drafts that are accepted as often as one says, whatever the model does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Judge, Verdict


class ForcedJudge:
    """A `Judge` that accepts each draft with a probability, if those before it were. What the model
    says is worked out as ever, in the same time, and then not heard.

    :param judge: that works it out, and does all else.
    """

    def __init__(self, judge: Judge, chance: float, seed: int = 0) -> None:
        self._judge, self._chance, self._random = judge, chance, Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)

    def verify(
        self, logits: Tensor, drafted: Sequence[Drafted], likeliest: Tensor | None = None
    ) -> list[Verdict]:
        verdicts = self._judge.verify(logits, drafted, likeliest)
        return [self._forced(*pair) for pair in zip(drafted, verdicts, strict=True)]

    def accept(self, tokens: Tensor, drafts: Tensor) -> Tensor:
        found = self._judge.accept(tokens, drafts)
        counts = torch.tensor(
            [self._count(drafts.shape[1]) for _ in range(len(drafts))], pin_memory=found.is_cuda)
        return found.copy_(counts, non_blocking=True)

    def _forced(self, drafted: Drafted, verdict: Verdict) -> Verdict:
        if verdict.token == INVALID:
            return verdict
        return Verdict(self._count(len(drafted.drafts)), verdict.token)

    def _count(self, most: int) -> int:
        accepted = 0
        while accepted < most and self._random.random() < self._chance:
            accepted += 1
        return accepted
