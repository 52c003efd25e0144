"""Engines on models with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ninfer_bench.synthetic import Synthetic
from ninfer_core.api import Speculator, SpeculatorContext
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.load import bind_judge, can_capture
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.verify import Judge
from ninfer_core.text.frontend import ChatFrontend
from ninfer_core.text.tokenizer import HfTokenizer
from ninfer_fixtures.tiny import tiny_resources

LETTERS = b"etaoinshrdlu "


class WideTokenizer(HfTokenizer):
    """The byte-level tokenizer among so many more tokens, which are letters."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int) -> None:
        super().__init__(tokenizer_json)
        self._known, self.vocab_size = self.vocab_size, vocab_size

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < self._known:
            return super().token_bytes(token_id)
        at = token_id % len(LETTERS)
        return LETTERS[at : at + 1]


def engine_on(
    synthetic: Synthetic, rows: int, *, drafts: bool = False,
    judged: Callable[[Judge], Any] = lambda judge: judge,
) -> Engine:
    """An engine that decodes as it would with weights that mean something: all tokens of the
    model's vocabulary, by captured graphs if it can.

    :param drafts: whether the plan's speculator drafts.
    :param judged: makes what draws tokens and judges drafts of what the profile has for it.
    """
    plan = synthetic.plan
    config, size = plan.config, plan.operations["vocab_size"]
    assert config.max_context is not None
    frontend = ChatFrontend(tiny_resources())
    frontend.tokenizer = WideTokenizer(tiny_resources()["tokenizer.json"], size)
    judge = bind_judge(synthetic.binder, size)
    limits = Limits(config.max_context, rows, config.max_queue, config.prefill_chunk)
    engine = Engine(
        synthetic.model, frontend, synthetic.store, limits, device=plan.hardware.device,
        judge=judged(judge), speculator=_speculator(synthetic, rows, judge) if drafts else None,
    )
    safe = can_capture(synthetic.kernels)
    if plan.hardware.device == "cuda" and safe and not config.eager:
        engine.capture()
    return engine


def _speculator(synthetic: Synthetic, rows: int, judge: Judge) -> Speculator:
    plan = synthetic.plan
    assert plan.speculator is not None and plan.config.max_context is not None
    made: Speculator = plan.speculator.speculator.load()(SpeculatorContext(
        draft_tokens=plan.max_verify_rows - 1, vocab_size=plan.operations["vocab_size"],
        model=synthetic.model, max_sequences=rows, max_tokens=plan.max_tokens,
        max_context=plan.config.max_context, device=plan.hardware.device, judge=judge,
    ))
    return made
