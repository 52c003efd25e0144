"""Log probabilities of a text's tokens, window by window, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.config import EnginePlan
from ninfer_core.engine.load import LoadedModel
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_perplexity.windows import Window, chunks

STEP_LOGITS = 256
"""Most rows of logits of a step: for a vocabulary of 248,000 they take 254 MB."""
BLOCK_ELEMENTS = 1 << 22
"""Numbers of a block of fp64 log probabilities: 32 MB."""


@frozen(eq=False)
class Block:
    """Consecutive targets.

    :ivar targets: int64 ``[R]``. :ivar log_probs: fp64 ``[R, V]``, over the tokenizer's vocabulary;
        valid until the next block.
    """

    targets: Tensor
    log_probs: Tensor


class Scorer:
    """Runs a model over windows of texts, each from an empty state.

    :param plan: with ``STEP_LOGITS`` or fewer rows of logits.
    """

    def __init__(self, plan: EnginePlan, loaded: LoadedModel) -> None:
        self._model, self._store, self._vocab_size = loaded.model, loaded.store, loaded.vocab_size
        self._device = plan.hardware.device
        self._most, self._most_targets = plan.max_tokens, min(plan.max_tokens, plan.max_logits)
        self._batches = BatchBuilder(
            max_rows=1, max_tokens=plan.max_tokens, max_logits=plan.max_logits,
            max_pages=-(-loaded.store.max_context // PAGE_TOKENS), device=self._device,
        )
        self._ids = count()

    def blocks(self, tokens: np.ndarray, window: Window) -> Iterator[Block]:
        """The targets of a window in order.

        :param tokens: int64 ``[N]``, the whole text.
        """
        targets = torch.from_numpy(tokens).to(self._device)
        for logits, end in self._steps(tokens, window):
            after = targets[end + 1 - len(logits) : end + 1]
            rows = max(1, BLOCK_ELEMENTS // self._vocab_size)
            for part, ids in zip(logits.split(rows), after.split(rows), strict=True):
                yield Block(ids, torch.log_softmax(part.double(), dim=-1))

    def _steps(self, tokens: np.ndarray, window: Window) -> Iterator[tuple[Tensor, int]]:
        """fp32 logits ``[targets, V]`` of the steps that have any, and where their inputs end."""
        sequence, state = next(self._ids), self._store.open()
        try:
            self._store.grow(state, window.end - 1 - window.begin)
            for chunk in chunks(window, self._most, self._most_targets):
                inputs = tokens[chunk.begin : chunk.end].tolist()
                wanted = max(1, chunk.num_targets)  # a step without logits is none
                row = Row(sequence, state, chunk.begin - window.begin, inputs, wanted)
                logits = self._model.forward(self._batches.fill([row]))
                if chunk.num_targets:
                    yield logits[:, : self._vocab_size], chunk.end
        finally:
            self._store.close(state)
