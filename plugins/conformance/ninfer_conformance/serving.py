"""L3: what the engine answers does not depend on how it gets there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from attrs import evolve, frozen

from ninfer_conformance.lab import MAX_CONTEXT, MAX_DRAFTS, MAX_ROWS, Lab
from ninfer_conformance.tolerances import require
from ninfer_core.api import (
    Advance,
    Draft,
    DraftRequest,
    Model,
    PreparedPrompt,
    SamplingParams,
    Speculator,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest, TextDelta
from ninfer_core.engine.scheduler import Limits
from ninfer_core.state.prefix_cache import PrefixCache

Answer = tuple[str, Finished]
Answers = Sequence[Answer]
Errs = Callable[[int], bool]
"""At which positions of a sequence drafts are wrong."""


@frozen
class Oracle:
    """A speculator that knows how sequences go on; ``errs`` says at which positions it is wrong."""

    sequences: Sequence[Sequence[int]]
    errs: Errs
    vocab_size: int
    max_drafts: int = MAX_DRAFTS

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._follow(request)) for request in requests]

    def advance(self, steps: Sequence[Advance]) -> None:
        """Nothing to learn."""

    def release(self, request_id: int) -> None:
        """Nothing to drop."""

    def _follow(self, request: DraftRequest) -> tuple[int, ...]:
        begin = len(request.tokens)
        known = next(each for each in self.sequences if [*each[:begin]] == [*request.tokens])
        drafts = enumerate(known[begin : begin + request.limit], begin)
        return tuple((token + self.errs(at)) % self.vocab_size for at, token in drafts)


ERRORS: dict[str, Errs] = {
    "right": lambda position: False, "wrong": lambda position: True,
    "mixed": lambda position: position * position % 7 > 3,
}


def requests_do_not_meet(lab: Lab) -> None:
    """Greedy and sampled requests together get the answers that they get alone."""
    requests = some_requests(lab)
    alone = [serve(lab, [request])[0] for request in requests]
    require_same(serve(lab, requests), alone, "together")


def speculation_changes_nothing(lab: Lab) -> None:
    """Right, wrong and mixed drafts give the answers without drafts."""
    requests = some_requests(lab)
    plain = serve(lab, requests)
    for what, errs in ERRORS.items():
        answers = serve(lab, requests, speculator=_oracle(lab, requests, plain, errs))
        require_same(answers, plain, f"with {what} drafts")
        require_acceptance(answers, what)


def stop_strings_cut_drafts(lab: Lab) -> None:
    """An answer ends before its stop string, also where that lies inside accepted drafts."""
    require_cuts(lab, (62, 1.0), lambda requests, whole: {
        "speculator": _oracle(lab, requests, whole, ERRORS["right"])
    })


def require_cuts(
    lab: Lab, kind: tuple[int, float],
    drafting: Callable[[Sequence[GenerationRequest], Answers], Mapping[str, Any]],
) -> None:
    """Fail unless pieces of an answer, as stop strings, cut it with drafts and without.

    :param kind: length of the prompt and temperature.
    :param drafting: what `serve` needs to draft this answer to these requests.
    """
    [(text, _)] = whole = serve(lab, some_requests(lab, [kind]))
    for at in range(len(text) // 2, len(text) - 1, 2):
        stop = text[at : at + 2]
        requests = some_requests(lab, [kind], stop=(stop,))
        [(cut, end)] = answers = serve(lab, requests, **drafting(requests, whole))
        what = f"stop {stop!r} in {text!r}"
        require(cut == text.partition(stop)[0], f"{what} gives {cut!r}")
        require(end.reason == "stop-string", f"{what} ends for {end.reason}")
        require_same(answers, serve(lab, requests), what)


def cancelling_leaves_nothing(lab: Lab) -> None:
    """Cancelled at any cycle, a request frees all that it held, and the others go on."""
    requests = some_requests(lab)
    plain = serve(lab, requests)
    for cycles in range(6):
        first, cancelled, *rest = serve(lab, requests, cancel_after=cycles)
        require(cancelled[1].reason == "cancelled", f"the reason is {cancelled[1].reason}")
        require_same([first, *rest], [plain[0], *plain[2:]], f"cancelled after {cycles} cycles")


def reuse_changes_nothing(lab: Lab) -> None:
    """A, then B that shares tokens with it up to the edge of a page or so, then both again: answers
    that go on from kept states are those of fresh runs."""
    for length in range(126, 131):
        (first,), (second,) = (some_requests(lab, [(n, 0.0)]) for n in (length, length + 30))
        shared = (first.prompt.token_ids[:128] + second.prompt.token_ids)[: length + 30]
        second = evolve(second, prompt=PreparedPrompt(shared, ""))
        plain = [serve(lab, [each])[0] for each in (first, second)]
        cache = PrefixCache(lab.store)
        for _ in range(2):
            answers = [serve(lab, [each], cache=cache)[0] for each in (first, second)]
            require_same(answers, plain, f"from kept states, {length} tokens")
        reused = sum(end.reuse.num_tokens for _, end in answers)
        cache.clear()
        require(reused >= 2 * 64, f"{reused} tokens were reused")


def pauses_change_nothing(lab: Lab) -> None:
    """A request that is paused in its prompt or its answer, and goes on from its kept state or
    from its tokens, gives the answer of one that is never paused."""
    requests = some_requests(lab, [(130, 0.0)])
    plain = serve(lab, requests)
    for cycles in (1, 2, 3, 5):
        for cache in (None, PrefixCache(lab.store)):
            answers = serve(lab, requests, cache=cache, pause_after=cycles)
            require_same(answers, plain, f"paused after {cycles} cycles")
            if cache:
                cache.clear()


def some_requests(
    lab: Lab, kinds: Sequence[tuple[int, float]] = ((1, 0.0), (62, 1.0), (64, 0.0), (130, 1.0)),
    stop: Any = (),
) -> list[GenerationRequest]:
    """Requests by length of the prompt and temperature."""
    size = lab.subject.frontend.tokenizer.vocab_size
    return [
        GenerationRequest(
            PreparedPrompt(tuple(token % size for token in lab.tokens(length, seed=length)), ""),
            SamplingParams(temperature, seed=1), 12, stop=stop, ignore_eos=True, raw=True,
        )
        for length, temperature in kinds
    ]


def sequences_of(
    requests: Sequence[GenerationRequest], answers: Answers
) -> list[list[int]]:
    """Prompts with the tokens that answered them."""
    pairs = zip(requests, answers, strict=True)
    return [[*request.prompt.token_ids, *end.token_ids] for request, (_, end) in pairs]


def serve(
    lab: Lab, requests: Sequence[GenerationRequest], *, speculator: Speculator | None = None,
    model: Model | None = None, cancel_after: int | None = None,
    cache: PrefixCache | None = None, pause_after: int | None = None,
) -> list[Answer]:
    """Answers of an engine of its own that holds nothing in the end.

    :param model: the lab's by default.
    :param cancel_after: cycles after which the second request is cancelled.
    :param cache: on the lab's store; nothing is kept without it.
    :param pause_after: cycles after which the first request is paused.
    """
    limits = Limits(max_context=MAX_CONTEXT, max_sequences=MAX_ROWS, prefill_chunk=64)
    engine = Engine(
        model or lab.model, lab.subject.frontend, lab.store, limits, speculator=speculator,
        cache=cache,
    )
    events: list[list[Event]] = [[] for _ in requests]
    ids = [engine.submit(r, sink.append) for r, sink in zip(requests, events, strict=True)]
    if cancel_after is not None:
        for _ in range(cancel_after):
            engine.step()
        engine.cancel(ids[1])
    if pause_after is not None:
        for _ in range(pause_after):
            engine.step()
        engine.pause(ids[0])
    engine.run_until_idle()
    engine.audit()
    return [_answer(each) for each in events]


def require_same(answers: Answers, plain: Answers, what: str) -> None:
    """Fail unless two runs gave the same tokens and texts."""
    for (text, end), (expected, wanted) in zip(answers, plain, strict=True):
        pairs = enumerate(zip_longest(end.token_ids, wanted.token_ids))
        differing = [f"token {i} is {got}, not {want}" for i, (got, want) in pairs if got != want]
        require(not differing, f"{what}: {'; '.join(differing)}")
        require(text == expected, f"{what}: the text is {text!r}, not {expected!r}")


def require_acceptance(answers: Answers, what: str) -> None:
    """Fail unless there were drafts, and of ``right`` ones all and of ``wrong`` ones none were
    accepted."""
    drafted = sum(end.usage.drafted_tokens for _, end in answers)
    accepted = sum(end.usage.accepted_tokens for _, end in answers)
    wanted = {"right": drafted, "wrong": 0}.get(what, accepted)
    require(drafted > 0 and accepted == wanted, f"{what}: {accepted} of {drafted} accepted")


def _oracle(
    lab: Lab, requests: Sequence[GenerationRequest], answers: Answers, errs: Errs
) -> Oracle:
    return Oracle(sequences_of(requests, answers), errs, lab.subject.frontend.tokenizer.vocab_size)


def _answer(events: Sequence[Event]) -> Answer:
    end = events[-1]
    assert isinstance(end, Finished)
    if end.cause:
        raise end.cause
    return "".join(each.text for each in events if isinstance(each, TextDelta)), end


CHECKS = (
    requests_do_not_meet, speculation_changes_nothing, stop_strings_cut_drafts,
    cancelling_leaves_nothing, reuse_changes_nothing, pauses_change_nothing,
)
