"""Plain steps that are launched before the host has seen what the one before gave."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from ninfer_core.engine import commit
from ninfer_core.engine.arrival import Arrival
from ninfer_core.engine.faults import not_finite
from ninfer_core.engine.runner import Runner
from ninfer_core.engine.sequence import Sequence
from ninfer_core.engine.status import TokenCounts
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Judge
from ninfer_core.state.batch import Row
from ninfer_core.state.store import SequenceState

Members = list[tuple[Sequence, SequenceState]]
"""Requests of a step, and their states."""


def is_member(sequence: Sequence, members: Members) -> bool:
    """Whether a step of these has the next token of a request, as that stands."""
    return any(each is sequence and state is sequence.state for each, state in members)


@frozen(eq=False)
class Flight:
    """A step whose tokens the host has not seen.

    :ivar tokens: int64 ``[R]`` on the device. :ivar certain: whether its inputs are for sure.
    """

    members: Members
    tokens: Tensor
    arrival: Arrival
    certain: bool


class Flights:
    """Launches the next step of requests behind the one whose tokens are awaited, and settles that
    one while the next runs.

    What was launched is in vain for a request that ends meanwhile, or gives way. So such a step
    takes its input not for sure: it records it, and what is committed is always what the host
    knows.

    :param counts: of tokens, which it keeps.
    """

    def __init__(
        self, runner: Runner, judge: Judge, counts: TokenCounts, vocab_size: int
    ) -> None:
        self._runner, self._judge, self._counts = runner, judge, counts
        self._vocab_size = vocab_size
        self._flight: Flight | None = None

    def decode(self, sequences: list[Sequence], *, goes_on: bool) -> list[Sequence]:
        """A step of free requests; return those that have to step otherwise.

        :param goes_on: whether nothing but the next such step follows, as far as can be seen.
        """
        flight, self._flight = self._flight, None
        flying = [each for each in sequences if flight and is_member(each, flight.members)]
        if not flying:
            if not all(map(self._may_fly, sequences)):
                return sequences
            flight, flying = self._launch(sequences, None), sequences
        assert flight is not None
        goes_on &= len(flying) == len(sequences) == len(flight.members)
        if goes_on and all(each.has_room_ahead(1) for each in flying):
            self._flight = self._launch(flying, flight)
        self._land(flight, flying)
        return [each for each in sequences if each not in flying]

    def _may_fly(self, sequence: Sequence) -> bool:
        """Whether its token can be drawn without the host."""
        return sequence.is_free and self._judge.is_prompt(sequence.sample_row(), self._vocab_size)

    def _launch(self, sequences: list[Sequence], behind: Flight | None) -> Flight:
        """A step, :param behind: one that gives it its inputs."""
        ahead, members, rows, draws = int(behind is not None), [], [], []
        replay = None if behind is None else int(not behind.certain)
        for each in sequences:
            assert each.state is not None
            members.append((each, each.state))
            draws.append(each.sample_row((0,) * ahead))
            rows.append(Row(
                each.id, each.state, each.frontier + ahead, each.tokens[-1:], 1,
                certain=behind is None, replay=replay,
            ))
        logits, tokens, _ = self._runner.decode(rows, behind.tokens if behind else None)
        if tokens is None or not all(each.is_plain for each in sequences):
            tokens = self._judge.sample(logits, draws)
        return Flight(members, tokens, Arrival(tokens.unsqueeze(-1)), behind is None)

    def _land(self, flight: Flight, sequences: list[Sequence]) -> None:
        certain = flight.certain or self._flight is not None  # that has applied what it recorded
        for (each, _), [token] in zip(flight.members, flight.arrival.wait(), strict=True):
            if each not in sequences:
                continue
            found = [] if token == INVALID else [token]
            self._counts.output += commit.settle(each, found, certain=certain)
            if not found and each.ending is None:
                each.ending = "error", not_finite()
