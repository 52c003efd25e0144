"""Rounds of greedy requests that the device judges, and behind which it drafts: the next one is
launched before the host has seen what came of the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.engine import commit
from ninfer_core.engine.arrival import Arrival
from ninfer_core.engine.faults import not_finite
from ninfer_core.engine.flights import Members, is_member
from ninfer_core.engine.runner import Runner
from ninfer_core.engine.sequence import Sequence as Request
from ninfer_core.engine.status import TokenCounts
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Judge
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.speculation.round import Speculation
from ninfer_core.state.batch import Row
from ninfer_core.state.store import SequenceState

NEVER = INVALID - 1
"""No model says this."""


@frozen(eq=False)
class Round:
    """A step over the last token and all drafts of each request, which nobody has judged.

    :ivar members: requests and their states. :ivar tokens: int64 ``[S, W]`` on the device: what the
        model says behind each input. :ivar inputs: int64 ``[S, W]`` there.
    """

    members: Members
    tokens: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Request], tokens: Tensor, inputs: Tensor) -> Self:
        """Of what a step gives: int64 ``[S * W]`` both."""
        shape, members = (len(sequences), -1), list[tuple[Request, SequenceState]]()
        for each in sequences:
            assert each.state is not None
            members.append((each, each.state))
        return cls(members, tokens.view(shape), inputs.view(shape))


class Rounds:
    """Judges rounds on the device, lets it draft behind them, and launches the next.

    What was launched is in vain for a request that ends meanwhile, or gives way. All that it has
    applied to a state is what the round before has committed: a request ends behind that or, with a
    stop string, within it; so those are not launched ahead.

    :param drafts, counts: which it keeps.
    """

    def __init__(
        self, runner: Runner, judge: Judge, speculation: Speculation, drafts: DraftCounts,
        counts: TokenCounts,
    ) -> None:
        self._runner, self._judge, self._speculation = runner, judge, speculation
        self._width, self._drafts, self._counts = speculation.width, drafts, counts
        self._round: Round | None = None
        self._ends: tuple[list[frozenset[int]], Tensor | None] = [], None

    def decode(self, sequences: list[Request], *, goes_on: bool) -> list[Request]:
        """A round of those whose drafts are on the device; return those that have to step
        otherwise.

        :param goes_on: whether nothing but the next such round follows, as far as can be seen.
        """
        found, self._round = self._round, None
        known = [each for each in sequences if found and is_member(each, found.members)]
        if not known:
            inputs = self._drafted(sequences)
            if inputs is None:
                return sequences
            found, known = self._launch(sequences, inputs), sequences
        assert found is not None
        self.settle(found, known, goes_on=goes_on and len(known) == len(sequences))
        return [each for each in sequences if each not in known]

    def drop(self) -> None:
        """Another step is about to take the place of the one that was launched."""
        self._round = None

    def takes(self, sequences: Sequence[Request], rows: Sequence[Row]) -> bool:
        """Whether a step is a round that the device can judge."""
        return self._speculation.drafts_ahead and all(
            each.is_plain and len(row.token_ids) == self._width
            for each, row in zip(sequences, rows, strict=True)
        )

    def settle(self, found: Round, known: Sequence[Request], *, goes_on: bool) -> None:
        """Judge a round, launch what follows, and commit what was accepted.

        :param known: the members that are still there.
        """
        drafts = self._judged_drafts(found)
        accepted = self._judge.accept(found.tokens, drafts)
        arrival = Arrival(
            torch.cat((accepted.unsqueeze(-1), found.tokens, found.inputs[:, 1:]), 1))
        if len(known) == len(found.members):
            self._go_on(found, known, accepted, goes_on)
        begins = [each.frontier for each, _ in found.members]
        for (each, _), [count, *numbers] in zip(found.members, arrival.wait(), strict=True):
            if each in known:
                self._commit(each, count, numbers)
        self._speculation.advance([
            each.advance(begin, row * self._width, drafted=self._width - 1,
                         accepted=each.frontier - begin - 1)
            for row, ((each, _), begin) in enumerate(zip(found.members, begins, strict=True))
            if each in known and not each.has_failed
        ])

    def _drafted(self, sequences: Sequence[Request]) -> Tensor | None:
        """Inputs of a round whose drafts the host has not seen."""
        if not (self._speculation.drafts_ahead and all(each.is_plain for each in sequences)):
            return None
        most = self._width - 1
        return self._speculation.drafted_ahead([each.draft_request(most) for each in sequences])

    def _launch(
        self, sequences: Sequence[Request], inputs: Tensor, accepted: Tensor | None = None
    ) -> Round:
        """A round, :param accepted: of the one before, if the host does not know it."""
        rows = self._rows(sequences)
        if accepted is not None:
            rows = [evolve(row, begin=row.begin + 1, replay=1) for row in rows]
        _, tokens, inputs = self._runner.decode(rows, inputs, accepted)
        assert tokens is not None
        return Round.of(sequences, tokens, inputs)

    def _rows(self, sequences: Sequence[Request]) -> list[Row]:
        """Of inputs that the host does not know."""
        width = self._width
        return [each.step_row([0] * width, width, certain=False) for each in sequences]

    def _go_on(
        self, found: Round, known: Sequence[Request], accepted: Tensor, goes_on: bool
    ) -> None:
        """Let the device draft behind a round if there is room, and launch the next."""
        if not all(each.has_room_ahead(self._width) for each in known):
            return
        drafted = self._speculation.draft_ahead(self._rows(known), found.tokens, accepted)
        if drafted is not None and goes_on and not any(each.request.stop for each in known):
            self._round = self._launch(known, drafted, accepted)

    def _judged_drafts(self, found: Round) -> Tensor:
        """The drafts, but none that ends its request: such a token comes behind those that are
        kept."""
        drafts, ends = found.inputs[:, 1:], self._ends_of(found)
        if ends is None:
            return drafts
        return drafts.masked_fill((drafts.unsqueeze(-1) == ends).any(-1), NEVER)

    def _ends_of(self, found: Round) -> Tensor | None:
        """The tokens with which each request ends, int64 ``[S, 1, E]`` on the device, if any does;
        made when others than before are together."""
        ids = [each.end_ids for each, _ in found.members]
        if ids != self._ends[0]:
            most, device, ends = max(map(len, ids)), found.inputs.device, None
            if most:
                rows = [[*each, *[NEVER] * (most - len(each))] for each in ids]
                pinned = torch.tensor(rows, pin_memory=device.type == "cuda").unsqueeze(1)
                ends = pinned.to(device, non_blocking=True)
            self._ends = ids, ends
        return self._ends[1]

    def _commit(self, sequence: Request, accepted: int, numbers: list[int]) -> None:
        """Keep the accepted drafts and the token behind them, of what the model says behind each
        input and the drafts."""
        token, drafts = numbers[accepted], numbers[self._width :]
        last = [] if token == INVALID else [token]
        kept = commit.settle(
            sequence, [*drafts[:accepted], *last], certain=self._round is not None)
        self._counts.output += kept
        accepted += drafts[accepted : accepted + 1] == last  # a draft that ends its request
        for counts in (sequence.drafts, self._drafts):
            counts.add_round(len(drafts), min(accepted, kept))
        if not last and sequence.ending is None:
            sequence.ending = "error", not_finite()
