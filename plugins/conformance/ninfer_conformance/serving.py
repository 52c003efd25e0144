"""L3: what the engine answers does not depend on how it gets there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_conformance.lab import MAX_CONTEXT, MAX_DRAFTS, MAX_ROWS, Lab
from ninfer_conformance.tolerances import require, require_close
from ninfer_conformance.watching import Watched
from ninfer_core.api import (
    Advance,
    Draft,
    DraftRequest,
    PreparedPrompt,
    SamplingParams,
    Speculator,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest, TextDelta
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.verify import Judge
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_fixtures.judges import Prompt

REPLAYED = "fp32"
"""Tolerance of logits on a state that one run decoded and another read."""

Errs = Callable[[int], bool]
"""At which positions of a sequence drafts are wrong."""


@frozen(eq=False)
class Answer:
    """What a request got.

    :ivar logits: fp32 ``[num_output, V]``, that its tokens were drawn from.
    """

    text: str
    end: Finished
    logits: Tensor


Answers = Sequence[Answer]


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


def requests_do_not_meet(lab: Lab, counts: Iterable[int] = range(2, 1 + MAX_ROWS)) -> None:
    """Greedy and sampled requests, two to eight together, get the answers that they get alone."""
    requests = some_requests(lab, [(n, float(n % 2)) for n in (1, 62, 64, 130, 5, 63, 65, 31)])
    alone = [serve(lab, [request])[0] for request in requests]
    for count in counts:
        require_same(lab, serve(lab, requests[:count]), alone[:count], f"{count} together")


def steps_launched_ahead_change_nothing(lab: Lab) -> None:
    """Steps that are launched before the host has seen what the one before gave are those that
    follow it, whatever their requests leave for others."""
    requests = some_requests(lab, [(n, float(n % 2)) for n in (1, 62, 64, 130)])
    plain, flown = Watched(lab.model), Watched(lab.model)
    expected = serve(lab, requests, model=plain)
    with kept_states(lab) as cache:
        answers = serve(lab, requests, model=flown, judge=Prompt(), cache=cache)
    require_same(lab, answers, expected, "launched ahead")
    plain.require_same(flown, "launched ahead", lab.tolerance)


def speculation_changes_nothing(lab: Lab, kinds: Iterable[str] = tuple(ERRORS)) -> None:
    """Right, wrong and mixed drafts give the answers without drafts."""
    requests = some_requests(lab)
    plain = serve(lab, requests)
    for what in kinds:
        oracle = _oracle(lab, requests, plain, ERRORS[what])
        answers = serve(lab, requests, speculator=oracle)
        require_same(lab, answers, plain, f"with {what} drafts")
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
    [answer] = whole = serve(lab, some_requests(lab, [kind]))
    text = answer.text
    for at in range(len(text) // 2, len(text) - 1, 2):
        stop = text[at : at + 2]
        requests = some_requests(lab, [kind], stop=(stop,))
        [cut] = answers = serve(lab, requests, **drafting(requests, whole))
        what = f"stop {stop!r} in {text!r}"
        require(cut.text == text.partition(stop)[0], f"{what} gives {cut.text!r}")
        require(cut.end.reason == "stop-string", f"{what} ends for {cut.end.reason}")
        require_same(lab, answers, serve(lab, requests), what)


def cancelling_leaves_nothing(lab: Lab) -> None:
    """Cancelled at any cycle, a request frees all that it held, and the others go on."""
    requests = some_requests(lab)
    plain = serve(lab, requests)
    for cycles in range(6):
        first, cancelled, *rest = serve(lab, requests, cancel_after=cycles)
        require(cancelled.end.reason == "cancelled", f"the reason is {cancelled.end.reason}")
        what = f"cancelled after {cycles} cycles"
        require_same(lab, [first, *rest], [plain[0], *plain[2:]], what)


def reuse_changes_nothing(lab: Lab, offsets: Iterable[int] = range(-2, 3)) -> None:
    """A, B that differs from it around the edge of a page, C that is A cut there, and A again:
    answers that go on from kept states are those of fresh runs.

    :param offsets: of the difference and of the cut, from the edge.
    """
    for offset in offsets:
        requests = _alike(lab, 160, 128 + offset)
        plain = [serve(lab, [each])[0] for each in requests]
        with kept_states(lab) as cache:
            order = (*requests, requests[0])
            answers = [serve(lab, [each], cache=cache)[0] for each in order]
        what = f"from kept states, {offset} behind a page"
        require_same(lab, answers, [*plain, plain[0]], what)
        reused = [answer.end.reuse.num_tokens for answer in answers]
        wanted = [0, 128 if offset >= 0 else 64, 128 if offset > 0 else 64, 128]
        require(reused == wanted, f"{what}: {reused} tokens were reused, not {wanted}")


def turns_go_on(lab: Lab, offsets: Iterable[int] = range(-2, 3)) -> None:
    """The next turn goes on from the state at the end of an answer, which came out of decoding:
    greedy tokens are those of a fresh run, and logits are, to a tolerance."""
    for offset in offsets:
        [asked] = some_requests(lab, [(117 + offset, 0.0)])
        with kept_states(lab) as cache:
            [answer] = serve(lab, [asked], cache=cache)
            tokens = (*asked.prompt.token_ids, *answer.end.token_ids)
            prompt = PreparedPrompt((*tokens, *some_tokens(lab, 20)), "")
            [found] = serve(lab, [turn := evolve(asked, prompt=prompt)], cache=cache)
        reuse, what = found.end.reuse, f"a turn {offset} behind a page"
        require(reuse.kind == "turn" and reuse.num_tokens == len(tokens) - 1, f"{what}: {reuse}")
        require_same(lab, [found], serve(lab, [turn]), what, REPLAYED)


def pauses_change_nothing(lab: Lab, cycles: Iterable[int] = range(1, 7)) -> None:
    """A request that is paused in its prompt or its answer, and goes on from its kept state or
    from its tokens, gives the answer of one that is never paused."""
    requests = some_requests(lab, [(130, 0.0)])
    plain = serve(lab, requests)
    for count in cycles:
        in_answer, what = count > -(-130 // 64), f"paused after {count} cycles"
        again = serve(lab, requests, pause_after=count)
        require_same(lab, again, plain, f"{what}, from its tokens")
        with kept_states(lab) as cache:
            kept = serve(lab, requests, cache=cache, pause_after=count)
        require_same(lab, kept, plain, f"{what}, from its state")
        replayed = [answer.end.reuse.replayed_tokens for answer in (*again, *kept)]
        wanted = [130 + count - 3 if in_answer else min(64 * count, 130), 0]
        require(replayed == wanted, f"{what}: {replayed} tokens were read again, not {wanted}")


def some_requests(
    lab: Lab, kinds: Sequence[tuple[int, float]] = ((1, 0.0), (62, 1.0), (64, 0.0), (130, 1.0)),
    stop: Any = (),
) -> list[GenerationRequest]:
    """Requests by length of the prompt and temperature."""
    return [
        GenerationRequest(
            PreparedPrompt(some_tokens(lab, length), ""), SamplingParams(temperature, seed=1), 12,
            stop=stop, ignore_eos=True, raw=True,
        )
        for length, temperature in kinds
    ]


def some_tokens(lab: Lab, length: int) -> tuple[int, ...]:
    """Other ones for each length, which the tokenizer knows."""
    size = lab.subject.frontend.tokenizer.vocab_size
    return tuple(token % size for token in lab.tokens(length, seed=length))


def sequences_of(
    requests: Sequence[GenerationRequest], answers: Answers
) -> list[list[int]]:
    """Prompts with the tokens that answered them."""
    pairs = zip(requests, answers, strict=True)
    return [[*request.prompt.token_ids, *answer.end.token_ids] for request, answer in pairs]


def serve(
    lab: Lab, requests: Sequence[GenerationRequest], *, speculator: Speculator | None = None,
    model: Watched | None = None, cancel_after: int | None = None,
    cache: PrefixCache | None = None, pause_after: int | None = None, judge: Judge | None = None,
) -> list[Answer]:
    """Answers of an engine of its own that holds nothing in the end.

    :param model: the lab's, as the engine is to have it.
    :param cancel_after: cycles after which the second request is cancelled.
    :param cache: on the lab's store; nothing is kept without it.
    :param pause_after: cycles after which the first request is paused.
    :param judge: of the engine.
    """
    limits = Limits(MAX_CONTEXT, MAX_ROWS, prefill_chunk=64, anchor_tokens=64)
    watched = model or Watched(lab.model)
    engine = Engine(
        watched, lab.subject.frontend, lab.store, limits, speculator=speculator, cache=cache,
        judge=judge,
    )
    watched.follow(engine)
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
    pairs = zip(requests, events, strict=True)
    return [_answer(watched, request, each) for request, each in pairs]


@contextmanager
def kept_states(lab: Lab) -> Iterator[PrefixCache]:
    """A cache on the lab's store, which is empty in the end."""
    cache = PrefixCache(lab.store)
    try:
        yield cache
    finally:
        cache.clear()


def require_same(
    lab: Lab, answers: Answers, plain: Answers, what: str, tolerance: str | None = None
) -> None:
    """Fail unless two runs gave the same tokens and texts, from the same logits, to a tolerance:
    the lab's, unless another is named."""
    for answer, wanted in zip(answers, plain, strict=True):
        pairs = enumerate(zip_longest(answer.end.token_ids, wanted.end.token_ids))
        differing = [f"token {i} is {got}, not {want}" for i, (got, want) in pairs if got != want]
        require(not differing, f"{what}: {'; '.join(differing)}")
        same = answer.text == wanted.text
        require(same, f"{what}: the text is {answer.text!r}, not {wanted.text!r}")
        require_close(answer.logits, wanted.logits, f"{what}: logits", tolerance or lab.tolerance)


def require_acceptance(answers: Answers, what: str) -> None:
    """Fail unless there were drafts, and of ``right`` ones all and of ``wrong`` ones none were
    accepted."""
    drafted = sum(answer.end.usage.drafted_tokens for answer in answers)
    accepted = sum(answer.end.usage.accepted_tokens for answer in answers)
    wanted = {"right": drafted, "wrong": 0}.get(what, accepted)
    require(drafted > 0 and accepted == wanted, f"{what}: {accepted} of {drafted} accepted")


def _oracle(
    lab: Lab, requests: Sequence[GenerationRequest], answers: Answers, errs: Errs
) -> Oracle:
    return Oracle(sequences_of(requests, answers), errs, lab.subject.frontend.tokenizer.vocab_size)


def _alike(lab: Lab, length: int, shared: int) -> list[GenerationRequest]:
    """A request, another that has so many of its tokens, and one that ends behind them."""
    [first] = some_requests(lab, [(length, 0.0)])
    tokens, size = first.prompt.token_ids, lab.subject.frontend.tokenizer.vocab_size
    other = (*tokens[:shared], *((token + 1) % size for token in tokens[shared:]))
    prompts = (PreparedPrompt(each, "") for each in (tokens, other, tokens[:shared]))
    return [evolve(first, prompt=prompt) for prompt in prompts]


def _answer(watched: Watched, request: GenerationRequest, events: Sequence[Event]) -> Answer:
    end = events[-1]
    assert isinstance(end, Finished)
    if end.cause:
        raise end.cause
    prompt = request.prompt.token_ids
    logits = watched.logits_after((*prompt, *end.token_ids), len(prompt))
    text = "".join(each.text for each in events if isinstance(each, TextDelta))
    return Answer(text, end, torch.stack(logits) if logits else torch.empty(0))


CHECKS = (
    requests_do_not_meet, steps_launched_ahead_change_nothing, speculation_changes_nothing,
    stop_strings_cut_drafts,
    cancelling_leaves_nothing, reuse_changes_nothing, turns_go_on, pauses_change_nothing,
)
