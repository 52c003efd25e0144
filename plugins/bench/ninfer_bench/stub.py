"""An engine on a model that computes nothing, so that what is left is the engine's own time."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import (
    KVCodecSpec,
    PagedStateSpec,
    PreparedPrompt,
    SamplingParams,
    SlotStateSpec,
    StatePlane,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, GenerationRequest
from ninfer_core.engine.scheduler import Limits
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_core.state.store import StateStore
from ninfer_core.text.frontend import ChatFrontend
from ninfer_fixtures.tiny import tiny_resources

STATES = (
    PagedStateSpec("kv", 1, (StatePlane("key", (1,)), StatePlane("value", (1,)))),
    SlotStateSpec("recurrent", 1, (1,), (1,)),
)
LETTERS = b"abcdefgh "


class StubModel:
    """Says a letter, and another one in each row.

    :param step_s: that a step takes, asleep, as a host is while a GPU works.
    """

    def __init__(self, most: int, vocab_size: int, step_s: float = 0) -> None:
        self._logits, self._step_s = torch.zeros(most, vocab_size), step_s
        for row in range(most):
            self._logits[row, LETTERS[row % len(LETTERS)]] = 1

    def forward(self, batch: Any) -> Tensor:
        """Prepared logits."""
        if self._step_s:
            time.sleep(self._step_s)
        return self._logits[: batch.num_logits]


def stub_engine(
    rows: int, context: int, output: int, step_s: float = 0
) -> tuple[Engine, StubModel]:
    """An engine, with all that serves text, for so many requests at once; see `StubModel`."""
    longest = context + output
    pages = rows * -(-longest // PAGE_TOKENS) + 16
    store = StateStore(
        STATES, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=pages,
        max_sequences=rows, max_context=longest, max_verify_rows=1,
    )
    frontend = ChatFrontend(tiny_resources())
    model = StubModel(rows, frontend.tokenizer.vocab_size, step_s)
    limits = Limits(max_context=longest, max_sequences=rows)
    return Engine(model, frontend, store, limits, cache=PrefixCache(store)), model


def submit_all(engine: Engine, rows: int, context: int, output: int) -> list[deque[Event]]:
    """Requests that do not end before ``output`` tokens; the last event of each."""
    sinks: list[deque[Event]] = [deque(maxlen=1) for _ in range(rows)]
    for row, sink in enumerate(sinks):
        prompt = PreparedPrompt((LETTERS[row % len(LETTERS)],) * context, "")
        request = GenerationRequest(prompt, SamplingParams(), output, ignore_eos=True)
        engine.submit(request, sink.append)
    return sinks
