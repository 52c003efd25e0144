"""Restore points and what they are worth."""

from __future__ import annotations

from typing import Any, Literal

from attrs import define, field

from ninfer_core.api import Scope, Tier
from ninfer_core.state.prefix_tree import Node

Kind = Literal["stable", "prompt", "turn", "mark", "branch", "anchor"]
"""Where a point was taken: behind the system prompt and tools, a prompt, an answer, at a mark of
the client, where two prompts part, somewhere in a long prompt."""

PRIOR: dict[str, float] = {
    "stable": 2.0, "mark": 2.0, "prompt": 1.0, "turn": 1.0, "branch": 1.0, "anchor": 0.25,
}
"""Uses to expect of a point that has had none, by kind."""

AWAITED = 4.0
"""Uses that whoever waits for a point stands for: it is certain to come, and soon."""

HALF_LIFE = 64
"""Captures and restores after which the demand for a point counts half."""


@define(eq=False)
class RestorePoint:
    """A place in a conversation from which it can go on.

    :ivar used_at, written_at: capture or last restore, and last file, by the cache's clock.
    :ivar uses: how often it was restored, decayed until then.
    :ivar awaits: how many are to go on from it. :ivar holds: for how many it must not be given up.
    :ivar copies: snapshots or files by tier.
    """

    node: Node[RestorePoint] = field(repr=False)
    scope: Scope
    kind: str
    used_at: int = 0
    written_at: int = -1
    uses: float = 0.0
    awaits: int = 0
    holds: int = 0
    copies: dict[Tier, Any] = field(factory=dict, repr=False)

    @property
    def num_tokens(self) -> int:
        return self.node.num_tokens

    def begin(self, tier: Tier | None = None) -> int:
        """Where the point before it stands; with a tier, the one before that has a copy there."""
        before = (p for p in self.node.ancestors() if not tier or tier in p.copies)
        return next((point.num_tokens for point in before), 0)

    def demand(self, now: int) -> float:
        """How much it may be wanted."""
        expected = (PRIOR[self.kind] + self.uses) * _decay(now - self.used_at)
        return expected + AWAITED * self.awaits

    def touch(self, now: int, uses: int) -> None:
        """Count uses, now."""
        self.uses = self.uses * _decay(now - self.used_at) + uses
        self.used_at = now

    def continue_conversation(self, now: int) -> None:
        """Take over the uses of the point before if it is of the same conversation; the uses of
        what many conversations begin with say nothing of this one."""
        between = ("branch", "anchor")
        before = next((p for p in self.node.ancestors() if p.kind not in between), None)
        if before and before.kind in ("prompt", "turn"):
            self.uses = before.uses * _decay(now - before.used_at)


def _decay(steps: int) -> float:
    return 0.5 ** (steps / HALF_LIFE)
