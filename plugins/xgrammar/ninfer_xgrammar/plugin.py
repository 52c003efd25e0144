"""What this distribution registers. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import ConstraintSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_constraint_engines() -> list[ConstraintSpec]:
    return [ConstraintSpec("xgrammar", "ninfer_xgrammar.compiler:Compiler")]
