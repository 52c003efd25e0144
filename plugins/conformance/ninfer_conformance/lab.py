"""A tiny model on the CPU: any history of steps, held against fresh runs of the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import SkipTest

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from ninfer_conformance.subject import Subject
from ninfer_conformance.tiny import random_values, stored
from ninfer_conformance.tolerances import require_close
from ninfer_core.api import KernelSpec, UnsupportedError
from ninfer_core.artifact.store import WeightStore
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import Registered, choose_profile, kernels_of
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.store import SequenceState, StateStore

MAX_CONTEXT, MAX_ROWS, MAX_DRAFTS, MAX_TOKENS = 256, 8, 3, 512
_NUM_PAGES = 64
_MACHINE: Any = SimpleNamespace(device="cpu", compute_dtype="float32")
Kernels = Mapping[str, Registered[KernelSpec]]


@define(eq=False)
class Track:
    """A sequence on its way through ``tokens``; ``frontier`` of them are committed."""

    tokens: list[int]
    state: SequenceState
    frontier: int = 0
    id: int = field(factory=count().__next__)


@frozen(eq=False)
class Move:
    """A track's part of a step: its next ``right`` tokens, which are then committed.

    :ivar drafts: None if they are certain; else one token and this many drafts are verified, of
        which those beyond ``right`` are wrong.
    """

    track: Track
    right: int
    drafts: int | None = None

    @property
    def num_inputs(self) -> int:
        """Tokens of the step, drafts included."""
        return self.right if self.drafts is None else 1 + self.drafts


class Lab:
    """A built tiny model and its state."""

    def __init__(
        self, subject: Subject, kernels: Kernels, weights: WeightStore, kv: str = "fp32"
    ) -> None:
        self.subject, self.kernels, self.weights = subject, kernels, weights
        pack, config = subject.implementation, subject.config
        self.states, self.vocab_size = pack.states(config), pack.operations(config)["vocab_size"]
        self.store = StateStore(
            self.states, subject.report.registry.kv_codecs[kv].spec, num_pages=_NUM_PAGES,
            max_sequences=MAX_ROWS + 1, max_context=MAX_CONTEXT, max_verify_rows=1 + MAX_DRAFTS,
        )
        self.binder = Binder(kernels, subject.report.registry.contracts, device="cpu")
        self.model: Any = build_model(
            pack, config, weights=weights, binder=self.binder, store=self.store, profile=_MACHINE,
            max_tokens=MAX_TOKENS, max_logits=MAX_TOKENS, max_context=MAX_CONTEXT,
        )
        self._batches = BatchBuilder(
            max_rows=MAX_ROWS, max_tokens=MAX_TOKENS, max_logits=MAX_TOKENS,
            max_pages=MAX_CONTEXT // 64,
        )
        self._fresh: dict[tuple[int, ...], Tensor] = {}
        self._fresh_predictions: dict[tuple[int, ...], Tensor] = {}

    @property
    def tolerance(self) -> str:
        """Bits, if every kernel claims to give them whatever the batch."""
        return "exact" if all(c.spec.batch_invariant for c in self.binder.choices) else "fp32"

    @property
    def reference(self) -> Lab:
        """The same model on the reference kernels."""
        return lab(self.subject, "reference")

    def with_kv(self, kv: str) -> Lab:
        """The same model with another KV codec."""
        return Lab(self.subject, self.kernels, self.weights, kv)

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        """Random token ids."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.vocab_size, (count,), generator=generator).tolist()

    @contextmanager
    def tracks(self, *lengths: int) -> Iterator[list[Track]]:
        """Open sequences; those in the list at the end are closed, and nothing may be lost."""
        tracks = [Track(self.tokens(n, seed), self.store.open()) for seed, n in enumerate(lengths)]
        try:
            yield tracks
        finally:
            for track in tracks:
                self.store.close(track.state)
        self.store.audit()

    def fresh(self, tokens: list[int]) -> Tensor:
        """Logits ``[len(tokens), V]`` of a new sequence that gets all tokens in one step."""
        if (key := tuple(tokens)) not in self._fresh:
            track = Track(tokens, self.store.open())
            logits, hidden = self._forward([move := Move(track, len(tokens))])
            self._fresh[key] = logits
            if hidden is not None:
                track.frontier = len(tokens) - 1
                whole = evolve(move, right=track.frontier)
                self._fresh_predictions[key] = self._predict([whole], hidden)
            self.store.close(track.state)
        return self._fresh[key]

    def step(self, *moves: Move, what: str) -> Tensor | None:
        """Run one step; the logits of all right tokens must be those of fresh runs.

        :return: hidden states of all the step's tokens, if the model has a predictor.
        """
        logits, hidden = self._forward(moves)
        sizes = [move.num_inputs for move in moves]
        for move, found in zip(moves, logits.split(sizes), strict=True):
            track, end = move.track, move.track.frontier + move.right
            expected = self.fresh(track.tokens)[track.frontier : end]
            where = f"{what}: logits of tokens {track.frontier}:{end} of {len(track.tokens)}"
            require_close(found[: move.right], expected, where, self.tolerance)
            track.frontier = track.state.num_tokens = end
            track.state.replay = 0 if move.drafts is None else move.right
        return hidden

    def predict(self, *moves: Move, hidden: Tensor, what: str) -> None:
        """Run the predictor over what a step has committed, on its hidden states; the logits must
        be those of fresh runs. A token must follow."""
        logits = self._predict(moves, hidden)
        for move, found in zip(moves, logits.split([m.right for m in moves]), strict=True):
            self.fresh(move.track.tokens)
            begin, end = move.track.frontier - move.right, move.track.frontier
            expected = self._fresh_predictions[tuple(move.track.tokens)][begin:end]
            where = f"{what}: predictions after tokens {begin}:{end} of {len(move.track.tokens)}"
            require_close(found, expected, where, self.tolerance)

    @torch.inference_mode()
    def predict_wrongly(self, *tracks: Track, steps: int) -> None:
        """Let the predictor read tokens that do not follow, on whatever hidden states there are."""
        for step in range(steps):
            hidden, rows = self.model.hidden(len(tracks)).clone(), []
            for track in tracks:
                begin = track.frontier + step
                self.store.grow(track.state, begin + 1)
                rows.append(Row(track.id, track.state, begin, self.tokens(1, begin), 1))
            self.model.predictor.forward(self._batches.fill(rows), hidden)

    def run(self, track: Track, width: int, end: int, what: str) -> None:
        """Steps of ``width`` certain tokens, up to ``end``."""
        while track.frontier < end:
            self.step(Move(track, min(width, end - track.frontier)), what=what)

    @torch.inference_mode()
    def _forward(self, moves: Iterable[Move]) -> tuple[Tensor, Tensor | None]:
        """Logits of all inputs, and their hidden states if the model has a predictor."""
        rows = []
        for move in moves:
            inputs, track = self._inputs(move), move.track
            self.store.grow(track.state, track.frontier + len(inputs))
            rows.append(Row(
                track.id, track.state, track.frontier, inputs, len(inputs), move.drafts is None
            ))
        logits = self.model.forward(batch := self._batches.fill(rows)).clone()
        has_predictor = getattr(self.model, "predictor", None) is not None
        return logits, self.model.hidden(batch.num_tokens).clone() if has_predictor else None

    @torch.inference_mode()
    def _predict(self, moves: Iterable[Move], hidden: Tensor) -> Tensor:
        """Logits after the committed tokens of a step, of which ``hidden`` has all."""
        rows, taken, first = [], list[int](), 0
        for move in moves:
            track, begin = move.track, move.track.frontier - move.right
            following = track.tokens[begin + 1 : track.frontier + 1]
            rows.append(Row(track.id, track.state, begin, following, move.right))
            taken += range(first, first + move.right)
            first += move.num_inputs
        logits, _ = self.model.predictor.forward(self._batches.fill(rows), hidden[taken])
        return logits.clone()

    def _inputs(self, move: Move) -> list[int]:
        begin, end = move.track.frontier, move.track.frontier + move.right
        num_wrong = move.num_inputs - move.right
        following = (move.track.tokens[end:] + self.tokens(num_wrong))[:num_wrong]
        return move.track.tokens[begin:end] + [(t + 1) % self.vocab_size for t in following]


@lru_cache(maxsize=8)
def lab(subject: Subject, variant: str) -> Lab:
    """A lab with the ``reference`` kernels, or with those of this machine's ``profile``."""
    kernels = reference_kernels(subject) if variant == "reference" else profile_kernels(subject)
    return Lab(subject, kernels, stored(subject, random_values(subject)))


def reference_kernels(subject: Subject) -> Kernels:
    """Those of the ops, and those that the subject brings itself for ops without a contract."""
    registry, own = subject.report.registry, subject.record.distribution
    references = {each.reference_kernel().name for each in registry.contracts.values()}
    return {
        name: each for name, each in registry.kernels.items()
        if name in references
        or (each.provenance.distribution == own and each.spec.op not in registry.contracts)
    }


def profile_kernels(subject: Subject) -> Kernels:
    """Those for this machine; raises `unittest.SkipTest` if it is no CPU's."""
    try:
        choice = choose_profile(subject.report)
    except UnsupportedError as error:
        raise SkipTest("no profile fits this machine") from error
    if choice.spec.profile.load()().device != "cpu":
        raise SkipTest(f"profile {choice.spec.name} is not for a CPU")
    return kernels_of(subject.report.registry, choice.provenance)
