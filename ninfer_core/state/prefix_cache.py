"""The prefix cache: which restore points there are, in which memory, and which of them must go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np
from attrs import define, field, frozen

from ninfer_core.api import (
    ArtifactError,
    CapacityError,
    NInferError,
    Scope,
    StateTier,
    StoredState,
    Tier,
)
from ninfer_core.state.cache_report import ConversationReport, report_conversations
from ninfer_core.state.memory import PageMemory, Snapshot
from ninfer_core.state.prefix_tree import Node, Tokens
from ninfer_core.state.restore_point import PRIOR, Kind, RestorePoint
from ninfer_core.state.store import SequenceState, StateStore

_log = logging.getLogger(__name__)

MIN_NEW = 1 / 8
"""Share of a file's tokens that no file before it has, at least: a conversation that grows is
written again now and then instead of at every turn."""


@frozen
class Match:
    """What the cache knows of a prompt.

    :ivar point: the deepest that leaves a token to compute. :ivar num_tokens: that it saves.
    :ivar diverged_at: how much of the prompt is known at all, up to the first token that differs.
    """

    point: RestorePoint | None
    num_tokens: int
    diverged_at: int


@define
class CacheStatistics:
    """Counts since the start.

    :ivar captured, refused: points taken, and not taken for want of room.
    :ivar restored: by the tier they came from. :ivar reused_tokens: of all of them.
    :ivar demoted, evicted: that went to the host, or for good. :ivar stored: files written.
    :ivar damaged: files that were of no use when they were wanted.
    """

    captured: int = 0
    refused: int = 0
    restored: dict[str, int] = field(factory=dict)
    reused_tokens: int = 0
    demoted: int = 0
    evicted: int = 0
    stored: int = 0
    damaged: int = 0


class PrefixCache:
    """Restore points by their exact tokens, in memory that sequences leave free.

    A point is one snapshot: pages and slot state of one computation. Under pressure it moves from
    the store's memory to the host's, where a restore finds what is not on the device any more.

    :param host: from `StateStore.host_memory`. :param disk: for states that outlive the process.
    :ivar version: another one whenever a point has come, gone or moved.
    """

    def __init__(
        self, store: StateStore, *, host: PageMemory | None = None, disk: StateTier | None = None
    ) -> None:
        self._store, self._device, self._host, self._disk = store, store.memory, host, disk
        self._memories = [each for each in (self._device, host) if each]
        self._tiers: list[Tier] = [*self._memories, *([disk] if disk is not None else [])]
        self._roots: dict[Scope, Node[RestorePoint]] = {}
        self._points: dict[RestorePoint, None] = {}  # a set in order, so that runs are alike
        self._now, self.version = 0, 0
        self.statistics = CacheStatistics(restored={tier.name: 0 for tier in self._tiers})
        if disk is not None:
            self._find_stored(disk)

    @property
    def host(self) -> PageMemory | None:
        """Where points go from the device, if anywhere."""
        return self._host

    @property
    def points(self) -> tuple[RestorePoint, ...]:
        """All that there are, the oldest first."""
        return tuple(self._points)

    def match(self, tokens: Sequence[int] | Tokens, scope: Scope) -> Match:
        """What is known of a prompt; takes time for its length, whatever the cache has."""
        point, at = None, 0
        if root := self._roots.get(scope):
            prompt = np.asarray(tokens, np.int32)
            for node, at in root.walk(prompt):
                if node.mark and node.num_tokens == at < len(prompt):
                    point = node.mark
        return Match(point, point.num_tokens if point else 0, at)

    def restore(self, point: RestorePoint) -> SequenceState:
        """A sequence that stands at a point, for which others may be evicted.

        :raises CapacityError: if no slot is free or too few pages can be; nothing has changed then.
        :raises NInferError: if the point is gone (evicted, or its file is damaged): match again.
        """
        tier = self.source(point)
        self._store.require_slot()
        self.hold(point)
        try:
            state = self._store.restore(self._ready(point, tier))
        finally:
            self.release(point)
        self._now += 1
        point.touch(self._now, uses=1)
        self.statistics.restored[tier.name] += 1
        self.statistics.reused_tokens += point.num_tokens
        return state

    def source(self, point: RestorePoint) -> Tier:
        """Where `restore` takes a point from; raises `NInferError` if it is gone."""
        if point not in self._points:
            raise NInferError("a restore point is gone", why="it was evicted", fix="match again")
        return next(each for each in self._tiers if each in point.copies)

    def capture(
        self, state: SequenceState, tokens: Sequence[int] | Tokens, num_tokens: int, scope: Scope,
        kind: Kind,
    ) -> RestorePoint | None:
        """Keep the state after the first ``num_tokens`` tokens, unless there is a copy already.

        What is worth least makes room; for an anchor, only what is worth less than itself. If the
        device has no room, the host may have.

        :return: None if there is none.
        :raises NInferError: if the state does not stand there, which is the caller's mistake.
        """
        if not 0 < num_tokens <= len(tokens):
            raise NInferError("a restore point is empty", why=f"{num_tokens} of {len(tokens)}")
        need = partial(self._store.num_pages_to_keep, state, num_tokens)
        num_pages = need()
        self._now += kind != "anchor"
        point = self._point_at(np.asarray(tokens[:num_tokens], np.int32), scope, kind)
        point.touch(self._now, uses=0)
        point.kind = max(point.kind, kind, key=PRIOR.__getitem__)
        if any(memory in point.copies for memory in self._memories):
            return point
        below = self._worth(point, self._device, num_pages) if kind == "anchor" else inf
        try:
            for memory in self._memories:
                if self._fit(memory, partial(need, memory), below):
                    follower = int(tokens[num_tokens]) if num_tokens < len(tokens) else None
                    snapshot = self._store.snapshot(state, num_tokens, memory, follower)
                    self._add(point, memory, snapshot)
                    self.statistics.captured += 1
                    return point
            self.statistics.refused += 1
        finally:
            if not point.copies:
                self._forget(point)
        return None

    def hold(self, point: RestorePoint) -> None:
        """Somebody may yet restore this point: it may go to another tier, but is not given up."""
        point.holds += 1

    def release(self, point: RestorePoint) -> None:
        """Take one `hold` back."""
        point.holds -= 1

    @property
    def num_reclaimable(self) -> int:
        """Pages of the device that would be free without the points that nobody holds."""
        idle = [point for point in self._points if not point.holds]
        return self._device.num_freed(self._copies(idle, self._device))

    def reclaim(self, num_pages: int) -> int:
        """Evict until so many pages of the device are free or nothing is left that would free any.
        Held points, which can only move, come after the others, and then what they shared.

        :return: how many more are free.
        """
        before = self._device.num_free
        for held in (False, True, False):
            points = [point for point in self._points if bool(point.holds) == held]
            self._shrink(self._device, num_pages, points)
        return self._device.num_free - before

    def persist(self) -> bool:
        """Write the file that is worth most, if any is worth its room; return whether one was.

        No eviction waits for a disk: this is for idle moments and for the end.
        """
        if (disk := self._disk) is None:
            return False
        for worth, num_pages, point, snapshot in self._unsaved(disk):
            if self._make_room(disk, num_pages, below=worth):
                tokens, point.written_at = point.node.path(), self._now
                try:
                    file = disk.save(snapshot, point.scope, point.kind, tokens)
                except OSError as error:
                    _log.warning("a restore point cannot be written: %s", error)
                    return False
                self._add(point, disk, file)
                self.statistics.stored += 1
                return True
        return False

    def discard(self, point: RestorePoint) -> None:
        """Give up a point whose state is wrong, and all that may have been computed from it."""
        below = list(point.node.subtree()) if point in self._points else []
        for mark in [node.mark for node in below if node.mark]:
            self._drop(mark, *mark.copies)

    def clear(self) -> None:
        """Give up all but the files."""
        for point in list(self._points):
            self._drop(point, *(memory for memory in self._memories if memory in point.copies))

    def conversations(self) -> tuple[ConversationReport, ...]:
        """What is kept of each conversation."""
        return report_conversations(self.points, self._now)

    def audit(self) -> None:
        """Raise `NInferError` unless every point is in its place, and every page of the store's
        memory and the host's is accounted for."""
        marks: list[RestorePoint] = []
        for root in self._roots.values():
            root.audit()
            marks += [node.mark for node in root.subtree() if node.mark]
            if not root.children:
                raise NInferError("a tree of restore points is empty")
        if set(marks) != self._points.keys() or not all(map(_is_sound, marks)):
            raise NInferError("restore points are lost", why=f"{len(marks)} are in the trees")
        for tier in self._tiers:
            copies = {point.copies[tier]: point for point in marks if tier in point.copies}
            others = tier.kept - copies.keys() if tier is not self._device else ()
            if others or not copies.keys() <= tier.kept or not all(
                copy.num_tokens == point.num_tokens for copy, point in copies.items()
            ):
                raise NInferError("copies of restore points are lost", where=tier.name)
        self._store.audit()
        if self._host:
            self._host.audit()

    def _find_stored(self, disk: StateTier) -> None:
        """Points of what earlier processes left."""
        for stored, scope, kind, tokens in tuple(disk.scan()):
            if kind in PRIOR:
                self._now += 1
                self._add(self._point_at(tokens, scope, kind), disk, stored)
            else:  # of another version of the core
                _log.warning("a stored state of unknown kind %r is given up", kind)
                disk.drop(stored)
        self._shrink(disk, 0, self._points)

    def _point_at(self, tokens: Tokens, scope: Scope, kind: str) -> RestorePoint:
        """The point behind these tokens; a new one must get a copy, or be forgotten."""
        node = self._roots.setdefault(scope, Node()).insert(tokens)
        if not node.mark:
            node.mark = RestorePoint(node, scope, kind, self._now)
            node.mark.continue_conversation(self._now)
        return node.mark

    def _copies(self, points: Iterable[RestorePoint], tier: Tier) -> list[Any]:
        return [point.copies[tier] for point in points if tier in point.copies]

    def _add(self, point: RestorePoint, tier: Tier, copy: Snapshot | StoredState) -> None:
        self.version += 1
        point.copies[tier] = copy
        self._points[point] = None

    def _drop(self, point: RestorePoint, *tiers: Tier) -> None:
        self.version += 1
        for tier in tiers:
            tier.drop(point.copies.pop(tier))
        if not point.copies:
            self._forget(point)

    def _forget(self, point: RestorePoint) -> None:
        self._points.pop(point, None)
        point.node.mark = None
        point.node.prune()
        if not self._roots[point.scope].children:
            del self._roots[point.scope]

    def _ready(self, point: RestorePoint, tier: Tier) -> Snapshot:
        """What to restore, when there is room for a sequence from it; a damaged file is deleted."""
        copy, disk = point.copies[tier], self._disk
        need = partial(self._store.num_pages_to_restore, copy)
        if tier is disk:  # a file is not read before there is room
            need = partial(self._store.num_pages, point.num_tokens)
        if not self._fit(self._device, need):
            raise CapacityError(
                "there is no room for a restore point", fix="end other requests",
                why=f"{point.num_tokens} tokens, {self._device.num_free} free pages",
            )
        try:
            ready: Snapshot = copy if disk is None or tier is not disk else disk.load(copy)
            return ready
        except ArtifactError as error:
            _log.warning("a restore point is given up: %s", error)
            self.statistics.damaged += 1
            self._drop(point, tier)
            raise

    def _worth(self, point: RestorePoint, tier: Tier, num_pages: int | None = None) -> float:
        """Tokens that each page of a copy saves from being read again. A copy that frees none by
        itself is not worth looking at."""
        if num_pages is None:
            num_pages = tier.num_freed([point.copies[tier]])
        begin = point.begin(tier if tier is self._disk else None)
        saved = (point.num_tokens - begin) * point.demand(self._now)
        return saved / num_pages if num_pages else inf

    def _unsaved(self, disk: StateTier) -> list[tuple[float, int, RestorePoint, Snapshot]]:
        """Snapshots to write, each with what a file is worth and takes, the best first. What lost
        its file is not written again before it was used again."""
        found = []
        for point in self._points:
            is_new = point.num_tokens - point.begin(disk) >= MIN_NEW * point.num_tokens
            if disk not in point.copies and is_new and point.used_at > point.written_at:
                [snapshot] = point.copies.values()
                num_pages = disk.num_pages_to_save(snapshot, point.scope)
                found.append((self._worth(point, disk, num_pages), num_pages, point, snapshot))
        return sorted(found, key=lambda each: each[0], reverse=True)

    def _fit(self, tier: Tier, need: Callable[[], int], below: float = inf) -> bool:
        """Make room for what is needed, which grows if pages go that it would have shared."""
        while (num_pages := need()) > tier.num_free:
            if not self._make_room(tier, num_pages, below):
                return False
        return True

    def _make_room(self, tier: Tier, num_pages: int, below: float) -> bool:
        """Evict what nobody holds and is worth less than ``below``, unless it is in vain."""
        victims = [
            point for point in self._points
            if tier in point.copies and not point.holds
            and (below == inf or self._worth(point, tier) < below)
        ]
        room = tier.num_free + tier.num_freed(self._copies(victims, tier))
        if room >= num_pages:
            self._shrink(tier, num_pages, victims)
        return room >= num_pages

    def _shrink(self, tier: Tier, num_pages: int, points: Iterable[RestorePoint]) -> None:
        """Evict points, the least worth first, until so many pages are free or none would be.

        A point that goes makes those behind it worth more, which shows when their turn comes, and
        the one before it worth less, which is looked at again at once. To look at all of them each
        time would take longer than a step where there are thousands.
        """
        order, victims = count(), dict.fromkeys(p for p in points if tier in p.copies)
        heap = [(self._worth(point, tier), next(order), point) for point in victims]
        heapify(heap)
        while heap and tier.num_free < num_pages:
            worth, _, victim = heappop(heap)
            if victim not in victims:
                continue
            now = self._worth(victim, tier)
            if now > worth:
                heappush(heap, (now, next(order), victim))
                continue
            if now == inf and not tier.num_freed(self._copies(victims, tier)):
                break
            before = next(victim.node.ancestors(), None)
            del victims[victim]
            self._evict(victim, tier)
            if before in victims:
                heappush(heap, (self._worth(before, tier), next(order), before))

    def _evict(self, point: RestorePoint, tier: Tier) -> None:
        """Take a copy away, but the last one of a held point. What leaves the device goes to the
        host, if that has room or what is worth less."""
        if tier is self._device and (host := self._host):
            copy = point.copies[tier]
            need = partial(host.num_pages_to_copy, copy)
            below = inf if point.holds else self._worth(point, host, need())
            if self._fit(host, need, below):
                self._add(point, host, host.copy(copy))
                self.statistics.demoted += 1
        if len(point.copies) > 1 or not point.holds:
            self.statistics.evicted += len(point.copies) == 1
            self._drop(point, tier)


def _is_sound(point: RestorePoint) -> bool:
    return bool(point.copies) and point.holds >= 0 and point.awaits >= 0
