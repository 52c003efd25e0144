"""A speculative round: drafts are proposed, verified, and their outcome observed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from torch import Tensor

from ninfer_core.api import Speculator
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.sampling.verify import Drafted, Verdict, expand, verify

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Speculation:
    """Rounds with a speculator, or plain steps without one.

    Drafts change the speed of an answer and never the answer, so a speculator that raises or drafts
    what it must not is switched off with a warning and costs no request.

    :param vocab_size: drafts must be below it.
    :ivar width: most tokens of a row: one and its drafts.
    """

    def __init__(self, speculator: Speculator | None, vocab_size: int) -> None:
        self._speculator, self._vocab_size = speculator, vocab_size
        self._asked: set[int] = set()
        self._sampler = Sampler()
        self.width = 1 + (speculator.max_drafts if speculator else 0)

    def propose(self, request_id: int, tokens: Sequence[int], room: int) -> list[int]:
        """Drafts to follow ``tokens``, at most ``room``; none without a speculator."""
        limit = min(room, self.width - 1)
        if self._speculator is None or limit < 1:
            return []
        self._asked.add(request_id)
        return self._guard(lambda s: self._check(s.propose(request_id, tokens, limit), limit)) or []

    def verify(
        self, logits: Tensor, rows: Iterable[SampleRow], drafts: Iterable[list[int]]
    ) -> list[Verdict]:
        """Judge the drafts of every row; ``logits`` has ``1 + len(drafts)`` rows for each."""
        return verify(self._sampler, logits, [
            Drafted(expand(row, drafted), tuple(drafted))
            for row, drafted in zip(rows, drafts, strict=True)
        ])

    def observe(self, request_id: int, drafted: Sequence[int], accepted: int) -> None:
        """Tell the speculator how many of its last drafts were committed."""
        if drafted:
            self._guard(lambda s: s.observe(request_id, drafted, accepted))

    def release(self, request_id: int) -> None:
        """Tell the speculator, if it was ever asked, that a request is gone."""
        if request_id in self._asked:
            self._asked.remove(request_id)
            self._guard(lambda s: s.release(request_id))

    def _check(self, drafts: Sequence[int], limit: int) -> list[int]:
        ids = [int(draft) for draft in drafts]
        if len(ids) > limit or not all(0 <= draft < self._vocab_size for draft in ids):
            raise ValueError(f"{ids} are more than {limit} or not all below {self._vocab_size}")
        return ids

    def _guard(self, call: Callable[[Speculator], T]) -> T | None:
        if self._speculator is None:
            return None
        try:
            return call(self._speculator)
        except Exception:
            _log.warning("the speculator failed and is switched off", exc_info=True)
            self._speculator = None
            return None
