"""The two kinds of step: all that decode, and a chunk of one that reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ninfer_core.api import Model, Progress, Speculator
from ninfer_core.engine import commit
from ninfer_core.engine.faults import fault_of, not_finite
from ninfer_core.engine.flights import Flights
from ninfer_core.engine.request import Reading
from ninfer_core.engine.residence import Residence
from ninfer_core.engine.rounds import Round, Rounds
from ninfer_core.engine.runner import Runner
from ninfer_core.engine.scheduler import Limits
from ninfer_core.engine.scoring import score_output, score_prompt
from ninfer_core.engine.sequence import Sequence as Request
from ninfer_core.engine.status import TokenCounts
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Judge, Verdict
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.speculation.round import Speculation
from ninfer_core.state.batch import Row


class Execution:
    """Runs steps of sequences that have their pages, up to the text that they publish. One that
    ends with a step has an ending then; its state is still there, as it is after the step.

    :param clock: of the time of first tokens.
    :ivar drafts, tokens: of all requests so far. :ivar width: most tokens of a decode row.
    """

    def __init__(
        self, model: Model, limits: Limits, residence: Residence, *,
        speculator: Speculator | None, vocab_size: int, device: torch.device | str,
        clock: Callable[[], float], judge: Judge | None,
    ) -> None:
        self.speculation, self._judge = Speculation(speculator, vocab_size), judge or Judge()
        self.width = self.speculation.width
        self.drafts, self.tokens = DraftCounts(), TokenCounts()
        self._runner = Runner(model, limits, self.width, vocab_size, device, self._judge)
        self._flights = Flights(self._runner, self._judge, self.tokens, vocab_size)
        self._rounds = Rounds(
            self._runner, self._judge, self.speculation, self.drafts, self.tokens)
        self._residence, self._clock = residence, clock

    def capture(self, progress: Progress | None) -> None:
        """See `Runner.capture`; the speculator's steps, too."""
        self._runner.capture(progress)
        self.speculation.capture()

    def decode(self, sequences: list[Request], *, alone: bool) -> None:
        """A step, with drafts, of all of them.

        :param alone: whether nothing else is to run in this cycle.
        """
        ahead = self._flights if self.width == 1 else self._rounds
        if others := ahead.decode(sequences, goes_on=alone):
            self._decode(others, goes_on=alone and len(others) == len(sequences))

    def _decode(self, sequences: Sequence[Request], *, goes_on: bool) -> None:
        drafts = self._propose(sequences)
        known = [
            [each.tokens[-1], *drafted.drafts]
            for each, drafted in zip(sequences, drafts, strict=True)
        ]
        rows = [
            each.step_row(inputs, len(inputs), certain=len(inputs) == 1)
            for each, inputs in zip(sequences, known, strict=True)
        ]
        logits, likeliest, inputs = self._runner.decode(rows)
        if likeliest is not None and self._rounds.takes(sequences, rows):
            found = Round.of(sequences, likeliest, inputs)
            return self._rounds.settle(found, sequences, goes_on=goes_on)
        verdicts = self._judge.verify(logits, drafts, likeliest)
        rooms = [each.most_drafts for each in sequences]
        self._settle(sequences, drafts, verdicts, logits)
        for sequence, drafted, verdict, room in zip(
            sequences, drafts, verdicts, rooms, strict=True
        ):
            self._count(sequence, len(drafted.drafts), verdict.accepted, room)
        if self.speculation.is_on:
            self._advance(sequences, rows)

    def prefill(self, sequence: Request, end: int, cycle: int) -> None:
        """Read to ``end``; at the end of a prompt, draw the first token. What is read again after a
        pause is followed by a token already.

        :raises ModelError: if logits at a restore point, or that are asked for, are not finite.
        """
        self._rounds.drop()
        begin, first = sequence.frontier, sequence.first_unscored(end)
        wanted = 1 if first is None else end - first
        logits = self._runner.prefill(sequence.step_row(sequence.tokens[begin:end], wanted))
        assert sequence.state is not None
        sequence.state.replay, sequence.last_cycle, known = 0, cycle, sequence.reached
        sequence.move_to(end)
        self.tokens.read += (new := max(0, end - known))
        self.tokens.replayed += end - begin - new
        if known < sequence.num_prompt and end > known:
            sequence.tell(Reading(min(end, sequence.num_prompt)))
        kind = sequence.wanted_point if new else None
        if (kind or first is not None) and not logits.isfinite().all():
            raise not_finite()
        if first is not None:
            sequence.tell(score_prompt(sequence, logits, first))
            sequence.num_scored = min(end + 1, sequence.num_prompt)
        if end == len(sequence.tokens) and sequence.ending is None:
            self._begin_output(sequence, logits[-1:])
        if sequence.has_failed:
            return
        if self.speculation.is_on and end < len(sequence.tokens):
            self.speculation.advance([sequence.advance(begin, 0, drafted=0, accepted=0)])
        if kind:
            self._residence.keep(sequence, kind)

    def _begin_output(self, sequence: Request, logits: Tensor) -> None:
        """Draw the first token after a prompt, if any is wanted."""
        if sequence.request.max_tokens == 0:
            commit.settle(sequence, [], reason="output-limit")
            return
        plain = Drafted.cut(sequence.sample_row)
        verdicts = self._judge.verify(logits, [plain])
        sequence.first_token_at = self._clock()
        self._settle([sequence], [plain], verdicts, logits)

    def _propose(self, sequences: Sequence[Request]) -> list[Drafted]:
        if not self.speculation.is_on:
            return [Drafted.cut(each.sample_row) for each in sequences]
        return self.speculation.propose([e.draft_request(self.width - 1) for e in sequences])

    def _count(self, sequence: Request, drafted: int, accepted: int, room: int) -> None:
        """Count a round that is settled, or a step whose request had no room for a draft.

        :param room: for drafts before the step.
        """
        for counts in (sequence.drafts, self.drafts):
            if drafted:
                counts.add_round(drafted, min(accepted, room - sequence.most_drafts))
            elif self.speculation.is_on and room < 1:
                counts.fallbacks += 1

    def _advance(self, sequences: Sequence[Request], rows: Sequence[Row]) -> None:
        """Let the speculator follow those that have not failed, also to where they end."""
        steps, first_row = [], 0
        for sequence, row in zip(sequences, rows, strict=True):
            if not sequence.has_failed:
                drafted, accepted = len(row.token_ids) - 1, sequence.frontier - row.begin - 1
                steps.append(
                    sequence.advance(row.begin, first_row, drafted=drafted, accepted=accepted)
                )
            first_row += len(row.token_ids)
        self.speculation.advance(steps)

    def _settle(
        self, sequences: Sequence[Request], drafts: Sequence[Drafted],
        verdicts: Sequence[Verdict], logits: Tensor,
    ) -> None:
        """Commit what was accepted, also where nothing can follow it: a plain run would have come
        as far."""
        candidates = [_tokens_of(*pair) for pair in zip(drafts, verdicts, strict=True)]
        scores = score_output(sequences, logits, [len(d.rows) for d in drafts], candidates)
        settled = zip(sequences, drafts, verdicts, candidates, scores, strict=True)
        first_row = 0
        for sequence, drafted, verdict, tokens, logprobs in settled:
            self.tokens.output += commit.settle(
                sequence, tokens, certain=not drafted.drafts, logprobs=logprobs)
            if verdict.token == INVALID and sequence.ending is None:
                row, at = drafted.rows[verdict.accepted], first_row + verdict.accepted
                sequence.ending = "error", fault_of(row, logits[at])
            first_row += len(drafted.rows)


def _tokens_of(drafted: Drafted, verdict: Verdict) -> list[int]:
    """What was accepted."""
    last = [] if verdict.token == INVALID else [verdict.token]
    return [*drafted.drafts[: verdict.accepted], *last]
