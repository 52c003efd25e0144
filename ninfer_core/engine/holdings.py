"""Who holds how much of the memory for states: requests, and what is kept of conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import frozen

from ninfer_core.engine.sequence import Sequence
from ninfer_core.state.cache_report import ConversationReport

Stage = Literal["waiting", "paused", "reading", "decoding"]


@frozen
class RequestHolding:
    """A request that has not ended.

    :ivar num_tokens: whose state it has. :ivar end: of what it has to read before it decodes.
    :ivar num_pages: of its tokens; some may be a conversation's, too.
    """

    id: int
    stage: Stage
    num_tokens: int
    end: int
    num_pages: int

    @classmethod
    def of(cls, sequence: Sequence) -> RequestHolding:
        """As it is now."""
        stage: Stage = "reading" if sequence.frontier < sequence.end else "decoding"
        if (state := sequence.state) is None:
            stage = "waiting" if sequence.admitted_at is None else "paused"
        num_pages = len(state.pages) if state else 0
        return cls(sequence.id, stage, sequence.frontier, sequence.end, num_pages)


@frozen
class Holdings:
    """All that is held in the pool, in host memory and in files; see also `EngineStatus`.

    :ivar conversations: the last used first; what several begin with is counted in each.
    """

    page_bytes: int
    requests: tuple[RequestHolding, ...]
    conversations: tuple[ConversationReport, ...]

    def lines(self) -> Iterator[str]:
        """For a reader: one for each request and conversation."""
        for each in self.requests:
            tokens = f"{each.num_tokens:,} of {each.end:,} tokens"
            yield f"request {each.id}: {each.stage}, {tokens}, {self._pages(each.num_pages)}"
        for kept in self.conversations:
            yield f"conversation: {', '.join(self._facts(kept))}"

    def _facts(self, kept: ConversationReport) -> Iterable[str]:
        yield f"{kept.num_tokens:,} tokens up to a {kept.kind} point, {kept.num_points} points"
        for tier, count in kept.pages.items():
            yield f"{tier} {self._pages(count)}, {kept.own_pages[tier]} of them its own"
        if kept.awaited:
            yield "awaited"
        yield f"last used {kept.age} captures and restores ago"

    def _pages(self, count: int) -> str:
        return f"{count} pages ({count * self.page_bytes:,} B)"
