"""Where time goes: functions of running objects with clocks around them, for as long as one looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

Site = tuple[str, Any, str]
"""A phase, and the owner and name of a function that it consists of; several may have one phase."""


class Stopwatch:
    """Nanoseconds by phase; of nested phases, what the inner one took is not the outer one's.

    :ivar spent: so far.
    """

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inner: list[int] = []  # of each phase that runs: what those within it took

    @contextmanager
    def watching(self, sites: Sequence[Site]) -> Iterator[None]:
        """Clocks around these functions, which are found as attributes of their owners."""
        before = [(owner, name, getattr(owner, name), name in vars(owner))
                  for _, owner, name in sites]
        try:
            for phase, owner, name in sites:
                setattr(owner, name, self.timed(phase, getattr(owner, name)))
            yield
        finally:
            for owner, name, call, is_own in reversed(before):
                if is_own:
                    setattr(owner, name, call)
                else:
                    delattr(owner, name)

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function with a clock around it."""

        def timed(*arguments: Any, **options: Any) -> Any:
            begin = perf_counter_ns()
            self._inner.append(0)
            try:
                return call(*arguments, **options)
            finally:
                took = perf_counter_ns() - begin
                self.spent[phase] += took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return timed
