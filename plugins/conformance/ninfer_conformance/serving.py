"""L3: what the engine answers does not depend on how it gets there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from attrs import frozen

from ninfer_conformance.lab import MAX_CONTEXT, MAX_DRAFTS, MAX_ROWS, Lab
from ninfer_conformance.tolerances import require
from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest, TextDelta
from ninfer_core.engine.scheduler import Limits

Answer = tuple[str, Finished]
Answers = Sequence[Answer]


@frozen
class Oracle:
    """A speculator that knows how sequences go on; ``errs`` says at which positions it is wrong."""

    sequences: Sequence[Sequence[int]]
    errs: Callable[[int], bool]
    vocab_size: int
    max_drafts: int = MAX_DRAFTS

    def propose(self, request_id: int, tokens: Sequence[int], limit: int) -> list[int]:
        begin, end = len(tokens), len(tokens) + limit
        known = next(each for each in self.sequences if [*each[:begin]] == [*tokens])
        drafts = enumerate(known[begin:end], begin)
        return [(token + self.errs(position)) % self.vocab_size for position, token in drafts]

    def observe(self, request_id: int, drafted: Sequence[int], accepted: int) -> None:
        """Nothing to learn."""

    def release(self, request_id: int) -> None:
        """Nothing to drop."""


_ORACLES: dict[str, Callable[[int], bool]] = {
    "right": lambda position: False, "wrong": lambda position: True,
    "mixed": lambda position: position * position % 7 > 3,
}


def requests_do_not_meet(lab: Lab) -> None:
    """Greedy and sampled requests together get the answers that they get alone."""
    requests = _requests(lab)
    alone = [_serve(lab, [request])[0] for request in requests]
    _require_same(_serve(lab, requests), alone, "together")


def speculation_changes_nothing(lab: Lab) -> None:
    """Right, wrong and mixed drafts give the answers without drafts."""
    requests = _requests(lab)
    plain = _serve(lab, requests)
    for what, errs in _ORACLES.items():
        answers = _serve(lab, requests, (plain, errs))
        _require_same(answers, plain, f"with {what} drafts")
        drafted = sum(end.usage.drafted_tokens for _, end in answers)
        accepted = sum(end.usage.accepted_tokens for _, end in answers)
        wanted = {"right": drafted, "wrong": 0}.get(what, accepted)
        require(drafted > 0 and accepted == wanted, f"{what}: {accepted} of {drafted} accepted")


def stop_strings_cut_drafts(lab: Lab) -> None:
    """An answer ends before its stop string, also where that lies inside accepted drafts."""
    [(text, _)] = plain = _serve(lab, _requests(lab)[1:2])
    for at in range(len(text) // 2, len(text) - 1, 2):
        stop = text[at : at + 2]
        requests = _requests(lab, stop=(stop,))[1:2]
        [(cut, end)] = answers = _serve(lab, requests, (plain, _ORACLES["right"]))
        what = f"stop {stop!r} in {text!r}"
        require(cut == text.partition(stop)[0], f"{what} gives {cut!r}")
        require(end.reason == "stop-string", f"{what} ends for {end.reason}")
        _require_same(answers, _serve(lab, requests), what)


def cancelling_leaves_nothing(lab: Lab) -> None:
    """Cancelled at any cycle, a request frees all that it held, and the others go on."""
    requests = _requests(lab)
    plain = _serve(lab, requests)
    for cycles in range(6):
        first, cancelled, *rest = _serve(lab, requests, cancel_after=cycles)
        require(cancelled[1].reason == "cancelled", f"the reason is {cancelled[1].reason}")
        _require_same([first, *rest], [plain[0], *plain[2:]], f"cancelled after {cycles} cycles")


def _requests(lab: Lab, stop: Any = ()) -> list[GenerationRequest]:
    """Greedy and sampled ones."""
    size = lab.subject.frontend.tokenizer.vocab_size
    return [
        GenerationRequest(
            PreparedPrompt(tuple(token % size for token in lab.tokens(length, seed=length)), ""),
            SamplingParams(temperature, seed=1), 12, stop=stop, ignore_eos=True, raw=True,
        )
        for length, temperature in ((1, 0.0), (62, 1.0), (64, 0.0), (130, 1.0))
    ]


def _serve(
    lab: Lab, requests: Sequence[GenerationRequest],
    drafts: tuple[Answers, Callable[[int], bool]] | None = None, cancel_after: int | None = None,
) -> list[Answer]:
    """Answers of an engine of its own that holds nothing in the end.

    :param drafts: answers that a speculator knows, and where it errs.
    :param cancel_after: cycles after which the second request is cancelled.
    """
    frontend, speculator = lab.subject.frontend, None
    if drafts:
        known = [[*request.prompt.token_ids, *end.token_ids]
                 for request, (_, end) in zip(requests, drafts[0], strict=True)]
        speculator = Oracle(known, drafts[1], frontend.tokenizer.vocab_size)
    limits = Limits(max_context=MAX_CONTEXT, max_sequences=MAX_ROWS, prefill_chunk=64)
    engine = Engine(lab.model, frontend, lab.store, limits, speculator=speculator)
    events: list[list[Event]] = [[] for _ in requests]
    ids = [engine.submit(r, sink.append) for r, sink in zip(requests, events, strict=True)]
    if cancel_after is not None:
        for _ in range(cancel_after):
            engine.step()
        engine.cancel(ids[1])
    engine.run_until_idle()
    engine.audit()
    return [_answer(each) for each in events]


def _answer(events: Sequence[Event]) -> Answer:
    end = events[-1]
    assert isinstance(end, Finished)
    if end.cause:
        raise end.cause
    return "".join(each.text for each in events if isinstance(each, TextDelta)), end


def _require_same(answers: Answers, plain: Answers, what: str) -> None:
    for (text, end), (expected, wanted) in zip(answers, plain, strict=True):
        pairs = enumerate(zip_longest(end.token_ids, wanted.token_ids))
        differing = [f"token {i} is {got}, not {want}" for i, (got, want) in pairs if got != want]
        require(not differing, f"{what}: {'; '.join(differing)}")
        require(text == expected, f"{what}: the text is {text!r}, not {expected!r}")


CHECKS = (
    requests_do_not_meet, speculation_changes_nothing, stop_strings_cut_drafts,
    cancelling_leaves_nothing,
)
