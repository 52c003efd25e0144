"""``ninfer bench engine soak``: random schedules for as long as one likes."""

from __future__ import annotations

import time
from argparse import Namespace
from random import Random

import torch
from attrs import asdict

from ninfer_bench.report import Report
from ninfer_fixtures.schedules import Counts, check, random_schedule


def run(arguments: Namespace) -> Report:
    """Play schedules, one a seed; the first that breaks a promise ends it, and its seed is named.
    """
    torch.set_num_threads(1)  # steps of a few numbers
    begin, seed, total = time.monotonic(), arguments.seed, Counts()
    problems: tuple[str, ...] = ()
    while time.monotonic() - begin < arguments.seconds and not problems:
        schedule = random_schedule(Random(seed), arguments.jobs)
        try:
            total += check(schedule)
        except Exception as error:  # whatever it is, the seed must be told
            problems = (f"seed {seed}: {type(error).__name__}: {error}; {schedule}",)
        seed += 1
    counts = {"schedules": seed - arguments.seed, **asdict(total)}
    seconds = time.monotonic() - begin
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in counts.items()]
    rows.append(("seconds", f"{seconds:.1f}"))
    values = {"benchmark": "engine soak", "seed": arguments.seed, "seconds": seconds, **counts}
    return Report(values, {"random schedules": rows}, problems)
