"""What the scheduler decided, and on which numbers: enough to decide it again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from attrs import asdict, frozen

from ninfer_core.engine.scheduler import Limits, Record, StepPlan, plan


@frozen
class Decision:
    """One call of `plan` and what came of it."""

    records: tuple[Record, ...]
    free_pages: int
    admits: bool
    plan: StepPlan

    def is_reproduced(self, limits: Limits) -> bool:
        """Whether the scheduler decides so again."""
        again = plan(self.records, limits, self.free_pages, admits=self.admits)
        return again == self.plan

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The decision that a line tells of."""
        found: dict[str, Any] = json.loads(line)
        step, records = found["plan"], tuple(Record(**each) for each in found["records"])
        lists = {name: tuple(step[name]) for name in ("admit", "decode")}
        return cls(records, found["free_pages"], found["admits"], StepPlan(**{**step, **lists}))


class Trace:
    """The last decisions of an engine.

    :param size: how many of them. :param write: gets every one as a line of JSON as well.
    """

    def __init__(self, size: int = 256, write: Callable[[str], None] | None = None) -> None:
        self._decisions, self._write = deque[Decision](maxlen=size), write

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def add(self, decision: Decision) -> None:
        """Remember one."""
        self._decisions.append(decision)
        if self._write:
            self._write(decision.to_json())
