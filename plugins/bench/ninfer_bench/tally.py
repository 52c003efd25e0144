"""What became of requests, in numbers: a long run must not keep the requests themselves."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

from attrs import define, field

from ninfer_bench.demand import Choice
from ninfer_core.engine.request import Finished

EXPECTED = ("output-limit", "cancelled", "deadline")
MAX_FAULTS = 5


@define(eq=False)
class Tally:
    """Sums over requests.

    :ivar queue_s: of each, from its submission to its admission or end.
    :ivar longest_s: from submission to the end.
    :ivar compared, differing: answers, and those that do not begin that of the request alone.
    :ivar faults: the first that ended as none should.
    """

    requests: int = 0
    reasons: Counter[str] = field(factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    reused_tokens: int = 0
    replayed_tokens: int = 0
    queue_s: array[float] = field(factory=lambda: array("d"))
    longest_s: float = 0.0
    compared: int = 0
    differing: int = 0
    faults: list[str] = field(factory=list)

    def add(self, choice: Choice, end: Finished, seconds: float) -> None:
        """One more."""
        self.requests += 1
        self.reasons[end.reason] += 1
        self.prompt_tokens += end.usage.prompt_tokens
        self.output_tokens += end.usage.output_tokens
        self.reused_tokens += end.reuse.num_tokens
        self.replayed_tokens += end.reuse.replayed_tokens
        self.queue_s.append(end.timings.queue_s)
        self.longest_s = max(self.longest_s, seconds)
        if (alone := choice.kind.alone) is not None:
            self.compared += 1
            self.differing += end.token_ids != alone[: len(end.token_ids)]
        if (end.reason not in EXPECTED or end.cause) and len(self.faults) < MAX_FAULTS:
            self.faults.append(f"a request ended with {end.reason}: {end.cause!r}")

    @classmethod
    def of(cls, parts: Iterable[Tally]) -> Tally:
        """The sum of several."""
        whole = cls()
        for part in parts:
            for name in ("requests", "reasons", "prompt_tokens", "output_tokens", "reused_tokens",
                         "replayed_tokens", "queue_s", "compared", "differing", "faults"):
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
            whole.longest_s = max(whole.longest_s, part.longest_s)
        return whole
