"""Running a model's steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import Model, Progress
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import PAGE_TOKENS, StepBatch

Step = tuple[Tensor, Tensor | None, Tensor]
"""Of a decode step: fp32 logits ``[sum of num_logits, V]``, their likeliest tokens as
`Sampler.likeliest` gives them, and the tokens that were read; valid until the next step."""


class Runner:
    """A model and the persistent inputs of its two kinds of step.

    :param width: most tokens of a decode row: one and its drafts.
    :param vocab_size: ids the tokenizer knows; logits of padding ids beyond it are cut off.
    :param sampler: of decode steps.
    """

    def __init__(
        self, model: Model, limits: Limits, width: int, vocab_size: int,
        device: torch.device | str, sampler: Sampler,
    ) -> None:
        pages, tokens = -(-limits.max_context // PAGE_TOKENS), limits.max_sequences * width
        builder = partial(BatchBuilder, max_pages=pages, device=device)
        self._model, self._vocab_size, self._sampler = model, vocab_size, sampler
        self._rows, self._width, self._chunk = limits.max_sequences, width, limits.prefill_chunk
        self._decode = builder(
            max_rows=limits.max_sequences, max_tokens=tokens, max_logits=tokens
        )
        self._prefill = builder(
            max_rows=1, max_tokens=limits.prefill_chunk, max_logits=limits.max_logits
        )
        self._forward: Callable[[StepBatch], Step] = self._step
        self._read: Callable[[StepBatch], Tensor] = self._logits

    @torch.inference_mode()
    def capture(self, progress: Progress | None = None) -> None:
        """Run by captured graphs from now on: a whole chunk of a prompt, one for each bound of its
        pages; decode steps, one for each number of rows, with and without drafts. They are captured
        over padding, which no sequence owns, the longest first, so that all memory is taken and
        what can fail for want of it does so now."""
        chunks, steps = CapturedForward(self._logits), CapturedForward(self._step)
        sizes = [(n, w) for n in range(1, self._rows + 1) for w in sorted({1, self._width})]
        chunk = partial(self._prefill.pad, 1, self._chunk, certain=True)
        pads: list[tuple[CapturedForward[Any], Callable[[], StepBatch]]] = [
            *((chunks, partial(chunk, num_pages=n)) for n in reversed(self._prefill.page_bounds)),
            *((steps, partial(self._decode.pad, *size)) for size in reversed(sizes)),
        ]
        for done, (captured, pad) in enumerate(pads, 1):
            captured.capture(pad())
            if progress:
                progress("graphs", done, len(pads))
        self._read, self._forward = chunks, steps

    def decode(
        self, rows: list[Row], inputs: Tensor | None = None, later: Tensor | None = None
    ) -> Step:
        """Run a step.

        :param inputs: int64, tokens on the device in place of those that the rows name; in place
            of `INVALID`, any.
        :param later: as of `StepBatch.move`, if the host does not know where the rows begin.
        """
        batch = self._decode.fill(rows)
        if inputs is not None:
            torch.clamp(inputs.flatten(), min=0, out=batch.token_ids[: batch.num_tokens])
        if later is not None:
            batch.move(later)
        return self._forward(batch)

    def prefill(self, row: Row) -> Tensor:
        """fp32 logits ``[num_logits, V]`` of the chunk's last tokens, valid until the next step."""
        return self._read(self._prefill.fill([row]))

    def _step(self, batch: StepBatch) -> Step:
        logits = self._logits(batch)
        return logits, self._sampler.likeliest(logits), batch.token_ids[: batch.num_tokens]

    def _logits(self, batch: StepBatch) -> Tensor:
        return self._model.forward(batch)[:, : self._vocab_size]
