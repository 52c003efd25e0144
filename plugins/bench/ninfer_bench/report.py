"""What a benchmark gives back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from attrs import frozen

from ninfer_core.cli.console import table

Rows = Sequence[Sequence[object]]


@frozen(eq=False)
class Report:
    """Results.

    :ivar values: for programs; JSON takes them.
    :ivar tables: for readers, by heading.
    :ivar problems: what should not be; the command fails with them.
    """

    values: Mapping[str, Any]
    tables: Mapping[str, Rows]
    problems: tuple[str, ...] = ()

    def text(self) -> str:
        """Tables one below the other, then the problems."""
        parts = [f"{heading}\n{table(*rows)}" for heading, rows in self.tables.items() if rows]
        parts += [f"PROBLEM: {problem}" for problem in self.problems]
        return "\n\n".join(parts)

    def to_json(self) -> str:
        """One object."""
        return json.dumps({**self.values, "problems": self.problems}, indent=2)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed; 0 without any."""
    ranked = sorted(values)
    return ranked[max(0, ceil(share * len(ranked)) - 1)] if ranked else 0.0


def percent(part: float, whole: float) -> str:
    """A share for a reader."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
