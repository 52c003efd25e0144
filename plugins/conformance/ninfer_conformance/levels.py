"""Which checks there are, and running them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from unittest import SkipTest

import torch
from attrs import frozen

from ninfer_conformance import (
    claims,
    frontend,
    histories,
    packaging,
    predicting,
    serving,
    weights,
)
from ninfer_conformance.lab import lab
from ninfer_conformance.subject import Subject, find_subject
from ninfer_core.plugin_host import PluginReport


@frozen
class CheckResult:
    """Outcome of a check: ``passed``, ``failed`` (``detail`` says what differed) or ``skipped``."""

    level: str
    check: str
    status: str
    detail: str
    seconds: float


@frozen
class Check:
    """A check of a level: it returns, or raises what is wrong, or `unittest.SkipTest`."""

    level: str
    name: str
    function: Callable[[Subject], None]

    def __call__(self, subject: Subject) -> None:
        """Run on one thread: on tiny products more threads only wait for each other."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self.function(subject)
        finally:
            torch.set_num_threads(threads)

    def result(self, subject: Subject) -> CheckResult:
        """Run, and report what is raised."""
        start, status, detail = time.perf_counter(), "passed", ""
        try:
            self(subject)
        except SkipTest as reason:
            status, detail = "skipped", str(reason)
        except AssertionError as difference:
            status, detail = "failed", str(difference)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            status, detail = "failed", f"{error!r} at {frame.filename}:{frame.lineno}"
        return CheckResult(self.level, self.name, status, detail, time.perf_counter() - start)


def _level(level: str, functions: Iterable[Any]) -> list[Check]:
    return [Check(level, each.__name__, each) for each in functions]


def _on_lab(function: Any, variant: str) -> Check:
    name = f"{function.__name__}[{variant}]"
    return Check("L3", name, lambda subject: function(lab(subject, variant)))


_L0 = _level("L0", packaging.CHECKS)
_LAB_CHECKS = (*histories.CHECKS, *serving.CHECKS, *predicting.CHECKS)
CHECKS: Mapping[str, list[Check]] = {
    "plugins": _L0,
    "profiles": [*_L0, *_level("L1", claims.PROFILE_CHECKS)],
    "packs": [
        *_L0, *_level("L1", claims.PACK_CHECKS), *_level("L2", weights.CHECKS),
        *(_on_lab(each, variant) for variant in ("reference", "profile") for each in _LAB_CHECKS),
        *_level("L4", frontend.CHECKS),
    ],
}
"""Checks by the kind of their subject. Those of L3 run on the reference kernels, then on those of
this machine's profile."""


def run_conformance(
    name: str, report: PluginReport, levels: Collection[str] | None = None
) -> list[CheckResult]:
    """Run the checks of a pack, profile or plugin, of all levels by default.

    :raises UnsupportedError: if nothing has this name.
    """
    subject = find_subject(report, name)
    checks = (each for each in CHECKS[subject.kind] if levels is None or each.level in levels)
    return [check.result(subject) for check in checks]
