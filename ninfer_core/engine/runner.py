"""Running a model's steps, eagerly."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ninfer_core.api import Model
from ninfer_core.engine.scheduler import Limits
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import PAGE_TOKENS


class Runner:
    """A model and the persistent inputs of its two kinds of step.

    :param width: most tokens of a decode row: one and its drafts.
    :param vocab_size: ids the tokenizer knows; logits of padding ids beyond it are cut off.
    """

    def __init__(
        self, model: Model, limits: Limits, width: int, vocab_size: int,
        device: torch.device | str,
    ) -> None:
        pages, tokens = -(-limits.max_context // PAGE_TOKENS), limits.max_sequences * width
        builder = partial(BatchBuilder, max_pages=pages, device=device)
        self._model, self._vocab_size = model, vocab_size
        self._decode = builder(
            max_rows=limits.max_sequences, max_tokens=tokens, max_logits=tokens
        )
        self._prefill = builder(max_rows=1, max_tokens=limits.prefill_chunk, max_logits=1)

    def decode(self, rows: list[Row]) -> Tensor:
        """fp32 logits ``[sum of num_logits, V]``, valid until the next step."""
        return self._model.forward(self._decode.fill(rows))[:, : self._vocab_size]

    def prefill(self, row: Row) -> Tensor:
        """fp32 logits ``[1, V]`` of the chunk's last token, valid until the next step."""
        return self._model.forward(self._prefill.fill([row]))[:, : self._vocab_size]
