"""What this distribution registers. Imports no torch."""

from __future__ import annotations

from ninfer_core.api import SpeculatorSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_speculators() -> list[SpeculatorSpec]:
    return [
        SpeculatorSpec("mtp", "ninfer_drafting.mtp:MtpSpeculator", component="mtp",
                       max_drafts=5),
        SpeculatorSpec("ngram", "ninfer_drafting.ngram:NgramSpeculator"),
    ]
