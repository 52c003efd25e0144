"""Clients on threads of their own, each with one request after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from threading import Thread

from attrs import define, field

from ninfer_bench.demand import Choice, Kind, choose
from ninfer_bench.tally import Tally
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.request import Finished


@define(eq=False)
class Client:
    """One client.

    :ivar tally: of its requests. :ivar fault: what stopped it, if anything did.
    """

    engine: EngineClient
    kinds: Sequence[Kind]
    random: Random
    tally: Tally = field(factory=Tally)
    fault: Exception | None = None

    def run(self, end: float) -> None:
        """Ask until a time of the monotonic clock."""
        try:
            while time.monotonic() < end:
                self._ask(choose(self.random, self.kinds))
        except Exception as error:  # it is told by whoever started the thread
            self.fault = error

    def _ask(self, choice: Choice) -> None:
        begin, generation = time.monotonic(), self.engine.submit(choice.request)
        for number, event in enumerate(generation):
            if number == choice.cancel_after:
                generation.cancel()
            if isinstance(event, Finished):
                self.tally.add(choice, event, time.monotonic() - begin)


def start(clients: Sequence[Client], end: float) -> list[Thread]:
    """A thread for each."""
    threads = [Thread(target=each.run, args=(end,), daemon=True) for each in clients]
    for thread in threads:
        thread.start()
    return threads
