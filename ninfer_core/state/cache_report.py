"""What a prefix cache holds, as records for reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import frozen

from ninfer_core.api import Scope, Tier
from ninfer_core.state.restore_point import RestorePoint


@frozen
class ConversationReport:
    """What is kept of a conversation: a point from which no other goes on, and those before it,
    which others may have begun with, too.

    :ivar kind: of the last point. :ivar num_tokens: up to there.
    :ivar pages: by tier, each page once. :ivar own_pages: of those, that would be free without its
        points.
    :ivar awaited: whether a request is to go on from one of them.
    :ivar age: captures and restores since one of them was used.
    """

    scope: Scope
    kind: str
    num_tokens: int
    num_points: int
    pages: Mapping[str, int]
    own_pages: Mapping[str, int]
    awaited: bool
    age: int


def report_conversations(
    points: Collection[RestorePoint], now: int
) -> tuple[ConversationReport, ...]:
    """Of all points of a cache, by its clock; the last used first."""
    before = {each for point in points for each in point.node.ancestors()}
    found = [_report_chain(point, now) for point in points if point not in before]
    return tuple(sorted(found, key=lambda each: each.age))


def _report_chain(last: RestorePoint, now: int) -> ConversationReport:
    chain, copies = [last, *last.node.ancestors()], dict[Tier, list[Any]]()
    for point in chain:
        for tier, copy in point.copies.items():
            copies.setdefault(tier, []).append(copy)
    return ConversationReport(
        scope=last.scope, kind=last.kind, num_tokens=last.num_tokens, num_points=len(chain),
        pages={tier.name: tier.num_held(each) for tier, each in copies.items()},
        own_pages={tier.name: tier.num_freed(each) for tier, each in copies.items()},
        awaited=any(point.awaits for point in chain),
        age=now - max(point.used_at for point in chain),
    )
