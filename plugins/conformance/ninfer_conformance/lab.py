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
from attrs import define, field, frozen
from torch import Tensor

from ninfer_conformance.subject import Subject
from ninfer_conformance.tiny import random_values, stored
from ninfer_conformance.tolerances import require_close
from ninfer_core.api import KernelSpec, UnsupportedError
from ninfer_core.artifact.store import WeightStore
from ninfer_core.engine.batch import BatchBuilder, Row
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import Registered, choose_profile, kernels_of
from ninfer_core.state.store import SequenceState, StateStore

MAX_CONTEXT, MAX_ROWS, MAX_DRAFTS = 256, 8, 3
_MAX_TOKENS, _NUM_PAGES = 512, 64
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
        self.binder = Binder(kernels, device="cpu")
        self.model = build_model(
            pack, config, weights=weights, binder=self.binder, store=self.store, profile=_MACHINE,
            max_tokens=_MAX_TOKENS, max_logits=_MAX_TOKENS, max_context=MAX_CONTEXT,
        )
        self._batches = BatchBuilder(
            max_rows=MAX_ROWS, max_tokens=_MAX_TOKENS, max_logits=_MAX_TOKENS,
            max_pages=MAX_CONTEXT // 64,
        )
        self._fresh: dict[tuple[int, ...], Tensor] = {}

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
            [self._fresh[key]] = self._forward([Move(track, len(tokens))])
            self.store.close(track.state)
        return self._fresh[key]

    def step(self, *moves: Move, what: str) -> None:
        """Run one step; the logits of all right tokens must be those of fresh runs."""
        for move, logits in zip(moves, self._forward(moves), strict=True):
            track, end = move.track, move.track.frontier + move.right
            expected = self.fresh(track.tokens)[track.frontier : end]
            where = f"{what}: logits of tokens {track.frontier}:{end} of {len(track.tokens)}"
            require_close(logits[: move.right], expected, where, self.tolerance)
            track.frontier, track.state.replay = end, 0 if move.drafts is None else move.right

    def run(self, track: Track, width: int, end: int, what: str) -> None:
        """Steps of ``width`` certain tokens, up to ``end``."""
        while track.frontier < end:
            self.step(Move(track, min(width, end - track.frontier)), what=what)

    @torch.inference_mode()
    def _forward(self, moves: Iterable[Move]) -> tuple[Tensor, ...]:
        rows: list[Any] = []
        for move in moves:
            inputs = self._inputs(move)
            self.store.grow(move.track.state, move.track.frontier + len(inputs))
            rows.append(Row(move.track, inputs, len(inputs), move.drafts is None))  # type: ignore[arg-type]
        logits = self.model.forward(self._batches.fill(rows)).clone()
        return logits.split([row.num_logits for row in rows])

    def _inputs(self, move: Move) -> list[int]:
        begin, end = move.track.frontier, move.track.frontier + move.right
        num_wrong = 0 if move.drafts is None else 1 + move.drafts - move.right
        following = (move.track.tokens[end:] + self.tokens(num_wrong))[:num_wrong]
        return move.track.tokens[begin:end] + [(t + 1) % self.vocab_size for t in following]


@lru_cache(maxsize=8)
def lab(subject: Subject, variant: str) -> Lab:
    """A lab with the ``reference`` kernels, or with those of this machine's ``profile``."""
    kernels = reference_kernels(subject) if variant == "reference" else _profile_kernels(subject)
    return Lab(subject, kernels, stored(subject, random_values(subject)))


def reference_kernels(subject: Subject) -> Kernels:
    """Those of the core, and those that the subject brings itself."""
    origins, kernels = ("ninfer-core", subject.record.distribution), subject.report.registry.kernels
    return {name: each for name, each in kernels.items() if each.provenance.distribution in origins}


def _profile_kernels(subject: Subject) -> Kernels:
    try:
        choice = choose_profile(subject.report)
    except UnsupportedError as error:
        raise SkipTest("no profile fits this machine") from error
    if choice.spec.profile.load()().device != "cpu":
        raise SkipTest(f"profile {choice.spec.name} is not for a CPU")
    return kernels_of(subject.report.registry, choice.provenance)
