"""What an engine says of itself."""

from __future__ import annotations

from attrs import define, frozen

from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.prefix_cache import CacheStatistics


@define
class TokenCounts:
    """Tokens of all requests so far.

    :ivar prompt: of those that were admitted. :ivar reused: of these, that none had to read.
    :ivar read: the others, as far as they were read. :ivar replayed: that were read once more after
        a pause. :ivar output: committed.
    """

    prompt: int = 0
    reused: int = 0
    read: int = 0
    replayed: int = 0
    output: int = 0


@frozen
class EngineStatus:
    """A moment of an engine; counts are of all requests so far.

    :ivar cycle: steps so far; it stands still only without requests, or if something is wrong.
    :ivar running: requests that have state. :ivar reading: of those, that read their prompt.
        :ivar replaying: of these, that read once more after a pause.
    :ivar waiting: that were never admitted. :ivar paused: that gave way to others.
    :ivar page_bytes: of a page. :ivar num_pages: of the pool.
    :ivar free_pages: that hold nothing at all.
    :ivar sequence_pages: of running requests; what others share is counted for each.
    :ivar host_pages, free_host_pages: of the cache's host memory.
    :ivar pauses: how often a request gave way.
    """

    cycle: int
    running: int
    reading: int
    replaying: int
    waiting: int
    paused: int
    page_bytes: int
    num_pages: int
    free_pages: int
    sequence_pages: int
    host_pages: int
    free_host_pages: int
    pauses: int
    tokens: TokenCounts
    drafts: DraftCounts
    cache: CacheStatistics
