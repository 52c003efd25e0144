"""From a request to a sequence that waits, or a refusal."""

from __future__ import annotations

from ninfer_core.api import (
    ConstraintCompiler,
    ContextLengthError,
    Frontend,
    PreparedPrompt,
    RequestError,
    is_scope,
)
from ninfer_core.engine.constraints import check_constraints, compile_content
from ninfer_core.engine.output import TextOutput
from ninfer_core.engine.request import GenerationRequest, Sink
from ninfer_core.engine.residence import places_of
from ninfer_core.engine.scheduler import Limits, num_pages
from ninfer_core.engine.sequence import Sequence
from ninfer_core.state.store import StateStore
from ninfer_core.text.parsers import PlainParser


class Intake:
    """Checks requests against what there is.

    :param vocab_size: ids that model and tokenizer know.
    :param reuses: whether states are kept for later requests.
    :param compiler: of grammars, if there is one.
    """

    def __init__(
        self, frontend: Frontend, store: StateStore, limits: Limits, vocab_size: int, *,
        reuses: bool, compiler: ConstraintCompiler | None = None,
    ) -> None:
        self._frontend, self._limits, self._vocab_size = frontend, limits, vocab_size
        self._pages = store.pool.num_pages if store.bytes_per_token else None
        self._reuses, self._compiler = reuses, compiler

    def accept(
        self, request: GenerationRequest, sink: Sink, *, cycle: int, now: float
    ) -> Sequence:
        """The sequence of a request, without an id; raises `RequestError` if it can never be
        served."""
        frontend, prompt = self._frontend, request.prompt
        check_constraints(request, frontend)
        parser = PlainParser() if request.raw else frontend.parser(prompt)
        eos = frozenset[int]() if request.ignore_eos else frontend.eos_token_ids
        end_ids, limit = eos | request.stop_token_ids, self._limit(request)
        sequence = Sequence(
            request=request, sink=sink,
            output=TextOutput(
                frontend.tokenizer.token_bytes, parser, request.stop, request.min_tokens
            ),
            end_ids=end_ids, limit=limit,
            content=compile_content(request, frontend, self._compiler, end_ids),
            tokens=list(prompt.token_ids), last_cycle=cycle, submitted_at=now,
        )
        if self._reuses and request.use_cache:
            _require_scope(prompt)
            anchor = self._limits.anchor_tokens
            sequence.places = places_of(
                sequence.num_prompt, prompt.num_stable, prompt.marks, anchor
            )
        return sequence

    def _limit(self, request: GenerationRequest) -> int:
        """Most tokens of a request; one that could not go on for want of pages even if it were
        alone is refused."""
        ids, most = request.prompt.token_ids, self._limits.max_context
        if not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise RequestError("the prompt has token ids that do not exist")
        if len(ids) + (request.max_tokens > 0) > most:
            why = f"{len(ids)} tokens and an output do not go into a sequence of {most}"
            raise ContextLengthError(
                "the prompt is too long", why=why, fix="raise --max-context")
        limit = min(len(ids) + request.max_tokens, most)
        states = max(len(ids), limit - 1)  # the last output token never has one
        if self._pages is not None and num_pages(states) > self._pages:
            why = f"its {limit} tokens may take {num_pages(states)} pages and there are "
            raise RequestError(
                "the request is too large", why=f"{why}{self._pages}",
                fix="lower its max_tokens, or raise --context-capacity",
            )
        return limit


def _require_scope(prompt: PreparedPrompt) -> None:
    if not is_scope(prompt.scope):
        raise RequestError(
            "states of the prompt cannot be told from others", where="scope",
            why=f"it is {prompt.scope!r}", fix="make it of strings, bytes, integers and tuples",
        )
