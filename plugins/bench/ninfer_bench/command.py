"""``ninfer bench``: run a benchmark and print what it found."""

from __future__ import annotations

from argparse import Namespace

from ninfer_bench.options import Benchmark
from ninfer_bench.report import Report


def run(arguments: Namespace) -> int:
    """Exit code 1 if it found a problem."""
    benchmark: Benchmark = arguments.benchmark
    report: Report = benchmark.run.load()(arguments)
    print(report.to_json() if arguments.json else report.text())
    return 1 if report.problems else 0
