"""The size of the pool that all sequences and kept states share."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from attrs import frozen

from ninfer_core.api import CapacityError
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import PAGE_TOKENS

RESERVE = 10
"""One part in so many of the budget is left to others by ``auto``."""


@frozen
class Pool:
    """Usable pages.

    :ivar reason: how their number comes about. :ivar reserve_bytes: of the budget, not to be used.
    """

    num_pages: int
    reason: str = ""
    reserve_bytes: int = 0


def size_pool(
    config: LaunchConfig, layout: StateLayout, budget_bytes: int, other_bytes: int
) -> Pool:
    """The pool that options ask for. It need not hold one sequence of ``max_context`` tokens: what
    does not fit is refused request by request.

    :param other_bytes: what everything but the pages takes.
    :raises CapacityError: if it does not hold a page, with the arithmetic.
    """
    if config.context_capacity is None:
        return _default(config, layout)
    if config.context_capacity == "auto":
        reserve = budget_bytes // RESERVE
        left, page = budget_bytes - other_bytes - reserve, layout.page_bytes
        why = (
            f"auto: {budget_bytes:,} B budget - {other_bytes:,} B for the rest - {reserve:,} B "
            f"reserve = {left:,} B / {page:,} B a page"
        )
        return Pool(_require_a_page(left // page, why), why, reserve)
    capacity = config.context_capacity
    why = f"{capacity:,} B / {layout.page_bytes:,} B a page"
    return Pool(_require_a_page(capacity // layout.page_bytes, why), "asked for")


def snapshot_pages(layout: StateLayout) -> int:
    """Most pages that a kept state takes beside those that it shares: an unaligned tail, and the
    image of a slot."""
    image = image_pages((layout.committed_bytes, layout.record_bytes), layout.page_bytes)
    return image + (layout.bytes_per_token > 0)


def image_pages(pieces: Iterable[float], page_bytes: int) -> int:
    """Pages of the pieces of a slot's image, in bytes."""
    return sum(ceil(nbytes / page_bytes) for nbytes in pieces)


def pool_summary(layout: StateLayout, num_pages: int, *, keeps: bool) -> str:
    """The pool in a line, and what a kept state takes of it, if any is kept."""
    tokens = f" of {PAGE_TOKENS} tokens," if layout.bytes_per_token else ""
    pool, most = f"{num_pages} pages{tokens} {layout.page_bytes:,} B each", snapshot_pages(layout)
    kept = f"; a kept state takes at most {most} beside full pages, which are shared"
    return pool + kept if keeps else pool


def _default(config: LaunchConfig, layout: StateLayout) -> Pool:
    one = -(-(config.max_context or 0) // PAGE_TOKENS) if layout.bytes_per_token else 1
    num_pages = one * config.max_concurrency
    why = f"{config.max_concurrency} x {config.max_context} tokens in pages"
    if not config.prefix_cache:
        return Pool(num_pages, why)
    more = snapshot_pages(layout)
    return Pool(num_pages + more, f"{why}, and {more} for a kept state")


def _require_a_page(num_pages: int, why: str) -> int:
    if num_pages < 1:
        raise CapacityError(
            "there is no room for a page of context", why=why,
            fix="raise --context-capacity, or choose a smaller model or --kv-dtype",
        )
    return num_pages
