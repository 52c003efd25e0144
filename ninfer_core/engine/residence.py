"""Who has a state: where a request goes on from, what it leaves for others, and who gives way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ninfer_core.api import NInferError, Tokenizer
from ninfer_core.engine.request import Reuse
from ninfer_core.engine.scheduler import num_pages
from ninfer_core.engine.sequence import Sequence
from ninfer_core.state.memory import Snapshot
from ninfer_core.state.prefix_cache import Match, PrefixCache
from ninfer_core.state.restore_point import Kind, RestorePoint
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_core.state.store import StateStore

MAX_MARKS = 8
"""Marks of a client that count, the last ones: more would push out other conversations."""
SHOWN = 16
"""Tokens around a divergence that a record shows."""

_log = logging.getLogger(__name__)


@frozen(eq=False)
class Prospect:
    """Where a waiting request could go on from.

    :ivar tokens: that were looked up. :ivar points: the deepest first.
    :ivar version: of the cache at which this was true.
    """

    tokens: NDArray[np.int32]
    match: Match
    points: tuple[RestorePoint, ...]
    version: int


class Residence:
    """Gives states to sequences and takes them.

    :param cache: of restore points on the store; None reuses nothing.
    :param drafts: whether a predictor may keep state beside the model's. What it has read of a
        position depends on the token after it as well; then a point is of use only where the same
        token follows as when it was taken.
    """

    def __init__(
        self, store: StateStore, cache: PrefixCache | None, tokenizer: Tokenizer, *,
        drafts: bool,
    ) -> None:
        self._store, self.cache, self._tokenizer, self._drafts = store, cache, tokenizer, drafts
        self._prospects: dict[int, Prospect] = {}
        self._awaited: dict[int, RestorePoint] = {}  # by paused requests

    @property
    def free_pages(self) -> int:
        """Free pages of the pool; a model without paged state wants none."""
        return self._store.pool.num_free if self._store.bytes_per_token else 1 << 40

    def shared_pages(self, sequence: Sequence) -> int:
        """Pages that a waiting request would have at once."""
        found = self._prospect(sequence)
        if not (self.cache and found and found.points and self._store.bytes_per_token):
            return 0
        copy = found.points[0].copies[self.cache.source(found.points[0])]
        if not isinstance(copy, Snapshot):
            return 0
        return num_pages(copy.num_tokens) - self._store.num_pages_to_restore(copy)

    def make_room(self, pages: int) -> None:
        """Let the cache give up points until so many pages are free, if it has them."""
        if self.cache and self.free_pages < pages:
            with self._sparing_requests():
                self.cache.reclaim(pages)

    def make_room_for(self, sequence: Sequence, pages: int) -> bool:
        """The same, but the point that a request is about to go on from stays, and nothing is given
        up in vain; return whether the pages are free."""
        cache, found = self.cache, self._prospect(sequence)
        if cache and self.free_pages < pages:
            with self._sparing_requests(), ExitStack() as after:
                for point in found.points[:1] if found else ():
                    cache.hold(point)
                    after.callback(cache.release, point)
                if self.free_pages + cache.num_reclaimable >= pages:
                    cache.reclaim(pages)
        return self.free_pages >= pages

    def enter(self, sequence: Sequence) -> None:
        """Give a request a state, as far on as there is one.

        :raises CapacityError: if no slot is free.
        """
        prospect = self._prospect(sequence)
        point, tier = self._restore(sequence, prospect.points if prospect else ())
        if sequence.state is None:
            sequence.state = self._store.open()
        if sequence.admitted_at is None:
            sequence.reuse = self._explain(sequence, prospect, point, tier)
            _want_branch(sequence, prospect)
        lost = max(0, sequence.reached - sequence.state.num_tokens)
        replayed = sequence.reuse.replayed_tokens + lost
        sequence.reuse = evolve(sequence.reuse, replayed_tokens=replayed)
        sequence.entered_at = sequence.state.num_tokens
        sequence.move_to(sequence.entered_at)
        self._forget(sequence)

    def keep(self, sequence: Sequence, kind: Kind) -> RestorePoint | None:
        """Leave the state where it stands for others, if there is room."""
        if not self._takes_part(sequence) or not sequence.frontier:
            return None
        if self._drafts and sequence.frontier == len(sequence.tokens):
            return None  # no token follows, so a predictor has not read the last position
        assert self.cache and sequence.state is not None
        scope, point = sequence.request.prompt.scope, None
        with self._sparing_requests():
            point = self.cache.capture(
                sequence.state, sequence.tokens, sequence.frontier, scope, kind
            )
        if point is not None:
            sequence.points.append(point)
        return point

    def pause(self, sequence: Sequence) -> None:
        """Take the state of a request that is to go on later: from what is left of it in the cache
        then, which goes after what is worth as much and awaited by nobody, and else from its
        tokens."""
        point = self.keep(sequence, "turn" if sequence.num_output else "prompt")
        self.leave(sequence)
        if point is not None:
            point.awaits += 1
            self._awaited[sequence.id] = point
        sequence.reuse = evolve(sequence.reuse, num_pauses=sequence.reuse.num_pauses + 1)

    def leave(self, sequence: Sequence) -> None:
        """Take the state of a request, if it has one."""
        self._forget(sequence)
        if sequence.state is not None:
            self._store.close(sequence.state)
            sequence.state, sequence.frontier = None, 0

    def distrust(self, sequence: Sequence) -> None:
        """Give up the points that a state came from that turned out to be wrong, and those that it
        left."""
        for point in sequence.points:
            if self.cache:
                with self._sparing_requests():
                    self.cache.discard(point)
        sequence.points.clear()

    def persist(self) -> bool:
        """Write a restore point to disk; see `PrefixCache.persist`."""
        if self.cache:
            with self._sparing_requests():
                return self.cache.persist()
        return False

    def _forget(self, sequence: Sequence) -> None:
        """A request waits no longer."""
        self._prospects.pop(sequence.id, None)
        if point := self._awaited.pop(sequence.id, None):
            point.awaits -= 1

    @contextmanager
    def _sparing_requests(self) -> Iterator[None]:
        """A fault of the cache costs what it holds, and no request."""
        try:
            yield
        except Exception:
            _log.exception("the prefix cache failed, and begins anew")
            assert self.cache
            self.cache.clear()

    def _takes_part(self, sequence: Sequence) -> bool:
        return self.cache is not None and sequence.request.use_cache

    def _prospect(self, sequence: Sequence) -> Prospect | None:
        """What the cache has for a request, looked up again when it may have changed."""
        if not self._takes_part(sequence):
            return None
        assert self.cache
        found, version = self._prospects.get(sequence.id), self.cache.version
        if found is None or found.version != version:
            tokens, match = found.tokens if found else sequence.token_array(), Match(None, 0, 0)
            with self._sparing_requests():
                match = self.cache.match(tokens, sequence.request.prompt.scope)
            points = tuple(self._usable(match.point, sequence)) if match.point else ()
            found = self._prospects[sequence.id] = Prospect(tokens, match, points, version)
        return found

    def _usable(self, point: RestorePoint, sequence: Sequence) -> Iterator[RestorePoint]:
        assert self.cache
        for each in (point, *point.node.ancestors()):
            if each.num_tokens > sequence.most_reused:
                continue
            follower = each.copies[self.cache.source(each)].next_token
            if not self._drafts or follower == sequence.tokens[each.num_tokens]:
                yield each

    def _restore(
        self, sequence: Sequence, points: tuple[RestorePoint, ...]
    ) -> tuple[RestorePoint | None, str]:
        for point in points:
            assert self.cache
            tier = ""
            with self._sparing_requests():
                try:
                    tier = self.cache.source(point).name
                    sequence.state = self.cache.restore(point)
                except NInferError as error:  # it is gone or damaged, or there is no room for it
                    _log.info("request %d goes on from further back: %s", sequence.id, error)
            if sequence.state is not None:
                sequence.points.append(point)
                return point, tier
        return None, ""

    def _explain(
        self, sequence: Sequence, prospect: Prospect | None, point: RestorePoint | None, tier: str
    ) -> Reuse:
        at = prospect.match.diverged_at if prospect else len(sequence.tokens)
        if at == len(sequence.tokens):
            reuse = Reuse()
        else:
            known, new = sequence.tokens[max(0, at - SHOWN) : at], sequence.tokens[at : at + SHOWN]
            reuse = Reuse(diverged_at=at, known=self._text(known), new=self._text(new))
        if point is None:
            return reuse
        return evolve(reuse, num_tokens=point.num_tokens, kind=point.kind, tier=tier)

    def _text(self, tokens: list[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, tokens)).decode(errors="replace")


def _want_branch(sequence: Sequence, prospect: Prospect | None) -> None:
    """Want a point where a prompt parts from all that is known: what two begin with, a third may
    begin with as well (tools before a nonce, a system prompt before an edited message)."""
    place = _on_grid(prospect.match.diverged_at) if prospect else 0
    taken = [at for at, _ in sequence.places]
    assert sequence.state is not None
    if sequence.state.num_tokens < place < sequence.num_prompt and place not in taken:
        sequence.places = sorted([*sequence.places, (place, "branch")])


def places_of(
    num_prompt: int, num_stable: int, marks: tuple[int, ...], anchor_tokens: int
) -> list[tuple[int, Kind]]:
    """Where restore points of a prompt are wanted, in order: on the grid of pages, and before the
    place that is meant, so that the token after the point is known and shared, too."""
    anchors = range(anchor_tokens, num_prompt, anchor_tokens)
    found: dict[int, Kind] = dict.fromkeys(anchors, "anchor")
    found |= {_on_grid(num_prompt): "prompt"}
    found |= {_on_grid(mark): "mark" for mark in sorted(marks)[-MAX_MARKS:]}
    found |= {_on_grid(num_stable): "stable"}
    return sorted((at, kind) for at, kind in found.items() if 0 < at < num_prompt)


def _on_grid(place: int) -> int:
    return (place - 1) // PAGE_TOKENS * PAGE_TOKENS
