"""L3: a model's next-token predictor drafts as if nothing had ever been rejected, and what it
drafts changes no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from unittest import SkipTest

from attrs import evolve, frozen
from torch import Tensor

from ninfer_conformance.lab import MAX_CONTEXT, MAX_DRAFTS, MAX_ROWS, MAX_TOKENS, Lab, Move
from ninfer_conformance.serving import (
    ERRORS,
    Answers,
    Errs,
    kept_states,
    require_acceptance,
    require_cuts,
    require_same,
    sequences_of,
    serve,
    some_requests,
)
from ninfer_conformance.tolerances import require
from ninfer_conformance.watching import Watched
from ninfer_core.api import SpeculatorContext
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.plugin_host import load_plugins
from ninfer_core.sampling.verify import Judge
from ninfer_core.state.step import StepBatch
from ninfer_fixtures.judges import Prompt

_LENGTHS = (1, 5, 62, 63, 64, 65, 130, MAX_CONTEXT - 6)


def predictions_come_in_any_chunks(lab: Lab) -> None:
    """The predictor reads a prompt in steps of any number of tokens."""
    _require_predictor(lab)
    for width in (1, 5, 63, 64, 65):
        with lab.tracks(132) as (track,):
            while track.frontier < 131:
                move, what = Move(track, min(width, 131 - track.frontier)), f"steps of {width}"
                _step(lab, [move], what)


def predictions_forget_rejected_drafts(lab: Lab) -> None:
    """Sequences together, each with another number of drafts accepted, after wrong drafts were
    read beyond the frontier."""
    _require_predictor(lab)
    for shift in range(1 + MAX_DRAFTS):
        with lab.tracks(*(80 + length for length in (1, 5, 37, 60))) as tracks:
            moves = [Move(track, len(track.tokens) - 20) for track in tracks]
            for _ in range(4):
                _step(lab, moves, "after rejected drafts")
                lab.predict_wrongly(*tracks, steps=MAX_DRAFTS)
                accepted = ((shift + index) % (1 + MAX_DRAFTS) for index in range(len(tracks)))
                moves = [
                    Move(track, 1 + count, MAX_DRAFTS)
                    for track, count in zip(tracks, accepted, strict=True)
                ]


def predicted_drafts_change_nothing(lab: Lab) -> None:
    """Greedy answers, and every row of logits they come from, are those of a run without drafts:
    with drafts as the predictor has them, and made to be right, wrong and mixed."""
    _require_predictor(lab)
    requests = some_requests(lab, [(length, 0.0) for length in _LENGTHS])
    plain = Watched(lab.model)
    expected = serve(lab, requests, model=plain)
    for what in ("own", *ERRORS):
        steered = what in ERRORS
        watched = (
            _Steering(lab, requests, expected, ERRORS[what]) if steered else Watched(lab.model)
        )
        answers = serve(lab, requests, model=watched, speculator=_mtp(lab, watched))
        require_same(lab, answers, expected, f"with {what} drafts")
        require_acceptance(answers, what)
        plain.require_same(watched, f"with {what} drafts", lab.tolerance)


def drafts_made_ahead_change_nothing(lab: Lab) -> None:
    """The same where drafts are made, and verified, behind steps of which the host has seen
    nothing; some are right."""
    _require_predictor(lab)
    short = some_requests(lab, [(length, 0.0) for length in (5, 63, 130)])
    requests = [evolve(each, max_tokens=30) for each in short]
    plain = serve(lab, requests)

    def draft(judge: Judge | None) -> Answers:
        watched = _Steering(lab, requests, plain, ERRORS["mixed"])
        speculator = _mtp(lab, watched, judge)
        return serve(lab, requests, model=watched, speculator=speculator, judge=judge)

    expected, answers = draft(None), draft(Prompt())
    require_same(lab, answers, plain, "with drafts made ahead")
    found, wanted = ([each.end.usage for each in some] for some in (answers, expected))
    require(found == wanted, f"with drafts made ahead: {found}, not {wanted}")


def stop_strings_cut_predictions(lab: Lab) -> None:
    """An answer ends before its stop string, also where that lies inside accepted drafts."""
    _require_predictor(lab)

    def drafting(requests: Sequence[GenerationRequest], whole: Answers) -> Mapping[str, Any]:
        watched = _Steering(lab, requests, whole, ERRORS["right"])
        return {"model": watched, "speculator": _mtp(lab, watched)}

    require_cuts(lab, (62, 0.0), drafting)


def drawn_drafts_do_not_meet(lab: Lab) -> None:
    """Sampled requests that draft together get the answers that they get alone, every time."""
    _require_predictor(lab)
    requests = [
        evolve(each, sampling=evolve(each.sampling, top_k=40, min_p=0.01, presence_penalty=0.5))
        for each in some_requests(lab, [(length, 0.9) for length in _LENGTHS[:5]])
    ]

    def draft(requests: Sequence[GenerationRequest]) -> Answers:
        return serve(lab, requests, speculator=_mtp(lab, lab.model))

    alone = [answer for each in requests for answer in draft([each])]
    require_same(lab, draft(requests), alone, "drafting together")
    require_same(lab, draft(requests), alone, "drafting together again")


def predictions_survive_reuse(lab: Lab) -> None:
    """A request that goes on from a kept state, or from its own after a pause, drafts what one
    drafts that is never interrupted."""
    _require_predictor(lab)
    requests = some_requests(lab, [(130, 0.0)])

    def draft(**options: Any) -> Answers:
        return serve(lab, requests, speculator=_mtp(lab, lab.model), **options)

    plain = draft()
    for what, cycles in (("once more", (None, None)), ("paused", (1, 2, 3, 4, 5))):
        with kept_states(lab) as cache:
            for count in cycles:
                answers = draft(cache=cache, pause_after=count)
                require_same(lab, answers, plain, what)
                found, wanted = answers[0].end.usage, plain[0].end.usage
                require(found == wanted, f"{what}: {found}, not {wanted}")
        require(answers[0].end.reuse.num_tokens == 128, f"{what}: {answers[0].end.reuse}")


@frozen(eq=False)
class _Steered:
    """A predictor that runs, and then says what it is told to."""

    predictor: Any
    watched: _Steering
    known: Sequence[Sequence[int]]
    errs: Errs

    @property
    def token_ids(self) -> None:
        """All, in order."""

    def forward(self, batch: StepBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits, own = self.predictor.forward(batch, hidden)
        told = logits.new_zeros(len(logits), self.watched.vocab_size)
        for row, prefix in zip(told, self.watched.note(batch, shift=1), strict=True):
            token = self._next(prefix) + self.errs(len(prefix))
            row[token % self.watched.vocab_size] = 1
        return told, own

    def _next(self, prefix: tuple[int, ...]) -> int:
        """What follows; anything after a wrong draft, or at the end."""
        after = (each[len(prefix)] for each in self.known
                 if len(prefix) < len(each) and tuple(each[: len(prefix)]) == prefix)
        return next(after, 0)


class _Steering(Watched):
    """The lab's model with a steered predictor."""

    def __init__(
        self, lab: Lab, requests: Sequence[GenerationRequest], answers: Answers, errs: Errs
    ) -> None:
        super().__init__(lab.model)
        known = sequences_of(requests, answers)
        self.vocab_size = lab.subject.frontend.tokenizer.vocab_size
        self.predictor = _Steered(self.predictor, self, known, errs)


def _step(lab: Lab, moves: Sequence[Move], what: str) -> None:
    hidden = lab.step(*moves, what=what)
    assert hidden is not None
    lab.predict(*moves, hidden=hidden, what=what)


def _mtp(lab: Lab, model: Any, judge: Judge | None = None) -> Any:
    return _speculator()(SpeculatorContext(
        draft_tokens=MAX_DRAFTS, vocab_size=lab.subject.frontend.tokenizer.vocab_size, model=model,
        max_sequences=MAX_ROWS, max_tokens=MAX_TOKENS, max_context=MAX_CONTEXT, device="cpu",
        judge=judge,
    ))


@cache
def _speculator() -> Any:
    registered = load_plugins().registry.speculators.get("mtp")
    if registered is None:
        raise SkipTest("no speculator is installed that uses the model's predictor")
    return registered.spec.speculator.load()


def _require_predictor(lab: Lab) -> None:
    if getattr(lab.model, "predictor", None) is None:
        raise SkipTest("the model has no predictor")


CHECKS = (
    predictions_come_in_any_chunks, predictions_forget_rejected_drafts,
    predicted_drafts_change_nothing, drafts_made_ahead_change_nothing,
    stop_strings_cut_predictions, drawn_drafts_do_not_meet, predictions_survive_reuse,
)
