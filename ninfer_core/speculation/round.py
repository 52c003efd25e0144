"""Drafts of a speculative round: they are proposed, and the speculator follows the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from torch import Tensor, int64

from ninfer_core.api import Advance, AheadSpeculator, Draft, DraftRequest, Speculator
from ninfer_core.sampling.verify import Drafted
from ninfer_core.state.batch import Row

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
        self._known: set[int] = set()  # requests that the speculator has heard of
        self.width = 1 + (speculator.max_drafts if speculator else 0)

    @property
    def is_on(self) -> bool:
        """Whether there is a speculator, and it has not failed."""
        return self._speculator is not None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Drafted]:
        """Drafts for each request, none for those with a limit below 1; what a mask forbids is cut
        off together with what follows it."""
        asked = [request for request in requests if request.limit > 0]
        drafts = dict(zip((each.request_id for each in asked), self._ask(asked), strict=True))
        found = ((each.row, drafts.get(each.request_id, Draft())) for each in requests)
        return [Drafted.cut(row, draft.token_ids, draft.proposals) for row, draft in found]

    @property
    def drafts_ahead(self) -> bool:
        """Whether the speculator is an `AheadSpeculator`."""
        return hasattr(self._speculator, "draft_ahead")

    def draft_ahead(
        self, rows: Sequence[Row], tokens: Tensor, accepted: Tensor
    ) -> Tensor | None:
        """See `AheadSpeculator.draft_ahead`; None if it is switched off."""
        def ask(speculator: Speculator) -> Tensor:
            ahead = cast(AheadSpeculator, speculator)
            return self._check_inputs(ahead.draft_ahead(rows, tokens, accepted), len(rows))

        return self._call([row.sequence_id for row in rows], ask)

    def drafted_ahead(self, requests: Sequence[DraftRequest]) -> Tensor | None:
        """See `AheadSpeculator.drafted_ahead`."""
        def ask(speculator: Speculator) -> Tensor | None:
            inputs = cast(AheadSpeculator, speculator).drafted_ahead(requests)
            return None if inputs is None else self._check_inputs(inputs, len(requests))

        return self._call((), ask)

    def advance(self, steps: Sequence[Advance]) -> None:
        """Tell the speculator what a step of the model has committed."""
        if steps:
            self._call([step.request_id for step in steps], lambda s: s.advance(steps))

    def capture(self) -> None:
        """Let a speculator that can (it has a ``capture()``) run by captured graphs, too."""
        try:
            getattr(self._speculator, "capture", lambda: None)()
        except Exception:
            _log.warning("the speculator's steps cannot be captured", exc_info=True)

    def release(self, request_id: int) -> None:
        """Tell the speculator, if it has heard of it, that a request is gone."""
        if request_id in self._known:
            self._known.remove(request_id)
            self._call((), lambda s: s.release(request_id))

    def _ask(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        def ask(speculator: Speculator) -> list[Draft]:
            drafts = speculator.propose(requests)
            return [self._check(*pair) for pair in zip(requests, drafts, strict=True)]

        ids = [request.request_id for request in requests]
        drafts = self._call(ids, ask) if requests else None
        return drafts or [Draft()] * len(requests)

    def _check(self, request: DraftRequest, draft: Draft) -> Draft:
        ids = tuple(int(token) for token in draft.token_ids)
        if len(ids) > request.limit or not all(0 <= token < self._vocab_size for token in ids):
            why = f"{ids} are more than {request.limit} or not all below {self._vocab_size}"
            raise ValueError(why)
        shape = len(ids), self._vocab_size
        if draft.proposals is not None and draft.proposals.shape != shape:
            raise ValueError(f"the proposals are {list(draft.proposals.shape)}, not {list(shape)}")
        return Draft(ids, draft.proposals)

    def _check_inputs(self, inputs: Tensor, count: int) -> Tensor:
        """What the host knows of inputs that are on the device."""
        if inputs.dtype != int64 or inputs.shape != (count, self.width):
            kind = f"{inputs.dtype} {list(inputs.shape)}"
            raise ValueError(f"the inputs are {kind}, not int64 [{count}, {self.width}]")
        return inputs

    def _call(self, request_ids: Sequence[int], call: Callable[[Speculator], T]) -> T | None:
        if self._speculator is None:
            return None
        self._known.update(request_ids)
        try:
            return call(self._speculator)
        except Exception:
            _log.warning("the speculator failed and is switched off", exc_info=True)
            self._switch_off(self._speculator)
            return None

    def _switch_off(self, speculator: Speculator) -> None:
        self._speculator = None
        for request_id in self._known:
            with suppress(Exception):  # it is broken, and said to be: what it still frees is free
                speculator.release(request_id)
        self._known.clear()
