"""Drafts of a round that are made behind the step before it, all of them on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import PredictingModel
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import StepBatch


@frozen(eq=False)
class Ahead:
    """Drafts of a request that were made behind a step.

    :ivar inputs: int64 ``[S, W]``: the last token of each request of that step, and its drafts.
    :ivar row: which of them. :ivar begin: of the step.
    :ivar end: tokens that have state since then; None until that is known.
    """

    inputs: Tensor
    row: int
    begin: int
    end: int | None = None


class RoundAhead:
    """What `AheadSpeculator.draft_ahead` launches: the predictor reads all rows of a step, those
    behind the last draft that was accepted in vain, and drafts behind that one.

    :param batch: that it fills.
    :param likeliest: writes ids int64 ``[S]`` of the predictor's logits, some where there is none.
    :param width: of the rows: one token and its drafts.
    """

    def __init__(
        self, model: PredictingModel, batch: BatchBuilder,
        likeliest: Callable[[Tensor, Tensor], None], *, width: int, max_rows: int,
        device: torch.device,
    ) -> None:
        self._model, self._batch, self._likeliest = model, batch, likeliest
        self._width, self._max_rows = width, max_rows

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._accepted = zeros(max_rows)
        self._firsts = torch.arange(0, max_rows * width, width, device=device)
        self._inputs = zeros(width, max_rows)  # a draft of all rows is what the next step reads
        self._positions = zeros(width - 2, 4, max_rows)
        self._contexts = zeros(len(self._positions), max_rows, dtype=torch.int32)
        self._rows = torch.arange(max_rows + 1, device=device)
        self._starts = self._rows.int()
        self._run: Callable[[StepBatch], Tensor] = self._read_and_draft

    def capture(self) -> None:
        """Run as captured graphs from now on, one for each number of rows."""
        captured = CapturedForward(self._read_and_draft)
        for num_rows in range(self._max_rows, 0, -1):
            captured.capture(self._batch.pad(num_rows, self._width, certain=True))
        self._run = captured

    def __call__(self, rows: Sequence[Row], tokens: Tensor, accepted: Tensor) -> Tensor:
        """`Ahead.inputs`; see `AheadSpeculator.draft_ahead`."""
        count, width = tokens.shape
        batch = self._batch.fill([
            Row(each.sequence_id, each.state, each.begin, [0] * width, num_logits=1)
            for each in rows
        ])
        torch.clamp(tokens.flatten(), min=0, out=batch.token_ids[: batch.num_tokens])
        self._accepted[:count].copy_(accepted)
        return self._run(batch).clone(memory_format=torch.contiguous_format)

    def _read_and_draft(self, batch: StepBatch) -> Tensor:
        count, inputs = batch.num_rows, self._inputs[:, : batch.num_rows]
        tokens = batch.token_ids[: batch.num_tokens].view(count, self._width)
        accepted = self._accepted[:count]
        torch.add(self._firsts[:count], accepted, out=batch.logit_rows[:count])
        torch.gather(tokens, 1, accepted.unsqueeze(-1), out=inputs[0].unsqueeze(-1))
        hidden = self._model.hidden(batch.num_tokens)
        for i, read in enumerate([batch, *self._steps_behind(batch, accepted)], 1):
            logits, hidden = self._model.predictor.forward(read, hidden)
            self._likeliest(logits, inputs[i])
        return inputs.t()

    def _steps_behind(self, batch: StepBatch, accepted: Tensor) -> list[StepBatch]:
        """Steps over all drafts but the last, of rows of which so many drafts are kept."""
        count, end = batch.num_rows, batch.num_tokens
        positions, drafts = self._positions[..., :count], slice(1, self._width - 1)
        places = batch.positions[:end].view(count, -1)[:, drafts].t()
        rope_places = batch.rope_positions[:, :end].view(3, count, -1)[..., drafts]
        torch.add(places, accepted, out=positions[:, 0])
        torch.add(rope_places.permute(2, 0, 1), accepted, out=positions[:, 1:])
        torch.add(places, accepted, out=self._contexts[:, :count])
        starts = self._starts
        return [
            evolve(
                batch, token_ids=self._inputs[1 + i], positions=own[0], rope_positions=own[1:],
                context_len=self._contexts[i], token_row=starts, row_start=starts,
                logit_rows=self._rows, num_tokens=count, num_logits=count,
            )
            for i, own in enumerate(self._positions)
        ]
