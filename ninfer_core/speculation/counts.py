"""What rounds of drafts came to."""

from __future__ import annotations

from attrs import define, field


@define
class DraftCounts:
    """Of one request, or of an engine.

    :ivar rounds: decode steps that verified drafts.
    :ivar drafted: tokens that were verified.
    :ivar accepted: those that the model agreed with, none behind the end of an answer.
    :ivar accepted_at: how often the draft at each position of a round was accepted.
    :ivar fallbacks: decode steps so near to the end of the request that no draft had room.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(factory=list)
    fallbacks: int = 0

    def add_round(self, drafted: int, accepted: int) -> None:
        """Count one step that verified ``drafted`` tokens, at least one."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at += [0] * (drafted - len(self.accepted_at))
        for position in range(accepted):
            self.accepted_at[position] += 1
