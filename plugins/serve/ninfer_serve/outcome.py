"""What became of a request, for those who keep count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from ninfer_core.engine.request import Finished


@frozen
class Outcome:
    """A request that the engine has taken, after its end. Of texts it has none.

    :ivar request_id: of HTTP. :ivar answer_id: see `Answer`.
    :ivar ends: of its choices that ended before its client left.
    :ivar record: see `ServeRequest`.
    :ivar prepare_s: its prompt took. :ivar first_s: from its arrival to the first of its output;
        None if there was none. :ivar total_s: to its end.
    """

    request_id: str
    answer_id: str
    num_choices: int
    ends: Sequence[Finished]
    prepare_s: float
    first_s: float | None
    total_s: float
    record: Mapping[str, Any] = field(factory=dict)


class Observer(Protocol):
    """Hears of every request once."""

    def done(self, outcome: Outcome) -> None:
        """It was served, or failed, or its client left."""
        ...

    def refused(self, request_id: str, error: Exception) -> None:
        """It never came to the engine."""
        ...
