"""What can be seen from the scheduler's decisions as they are made."""

from __future__ import annotations

from ninfer_core.engine.scheduler import Record
from ninfer_core.engine.trace import Decision, Trace


class Watch(Trace):
    """A trace that keeps the extremes of all decisions.

    :ivar cycles: so far.
    :ivar most_passed: how often a request was passed by younger ones, at most.
    :ivar longest_wait: cycles that a request had to wait for memory, before it began or paused. Of
        those that wait, the scheduler sees the first few; the others begin to wait when they are
        among them.
    :ivar longest_idle: cycles without a step of the oldest request while it ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cycles = self.most_passed = self.longest_wait = self.longest_idle = 0
        self._waiting: dict[int, int] = {}  # the cycle in which a ticket was first seen to wait
        self._oldest = self._idle_since = 0

    def add(self, decision: Decision) -> None:
        """Look at one, and remember it."""
        super().add(decision)
        self.cycles += decision.admits
        waiting = [record for record in decision.records if not record.running]
        if waiting:
            self._see_waiting(waiting)
        if decision.plan.pause is None and not decision.plan.admit:
            self._see_oldest(decision)

    def _see_waiting(self, waiting: list[Record]) -> None:
        since = {each.ticket: self._waiting.get(each.ticket, self.cycles) for each in waiting}
        self._waiting = since
        self.longest_wait = max(self.longest_wait, self.cycles - min(since.values()))
        self.most_passed = max(self.most_passed, *(record.passed for record in waiting))

    def _see_oldest(self, decision: Decision) -> None:
        oldest = next(iter(decision.records), None)
        if oldest is None or not oldest.running:
            return
        plan = decision.plan
        steps = oldest.ticket in plan.decode or oldest.ticket == plan.prefill
        if steps or oldest.ticket != self._oldest:
            self._oldest, self._idle_since = oldest.ticket, self.cycles
        self.longest_idle = max(self.longest_idle, self.cycles - self._idle_since)
