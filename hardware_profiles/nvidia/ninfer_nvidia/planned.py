"""A card that can be planned for, but not used yet: there are figures of it and no kernels."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ninfer_core.api import Detection, MachineFigures, UnsupportedError
from ninfer_nvidia.cards import cards


@frozen
class PlannedCard:
    """A `HardwareProfile` that predicts for its card and refuses to run on it.

    :ivar card: its figures; ``memory_bytes`` is what a plan may use.
    """

    name: str
    capability: int
    default_kv_dtype: str
    card: MachineFigures
    device: str = "cuda"
    compute_dtype: str = "bfloat16"

    def figures(self) -> MachineFigures:
        return self.card

    def prepare(self, num_threads: int | None) -> None:
        """Always raises `UnsupportedError`."""
        raise UnsupportedError(
            f"profile {self.name} cannot run a model yet", why="it has no kernels",
            fix=f"only `ninfer plan MODEL --profile {self.name}` works for now; "
            "run models with --profile cpu",
        )

    def memory_budget(self) -> int:
        """That of a plan: asking the card what is free would take torch."""
        return self.card.memory_bytes


def detect_planned(models: Sequence[str]) -> Detection:
    """Whether one of ``models`` (exact names of cards) is here; never a score, because a profile
    without kernels must not win."""
    found = cards()
    if not found:
        return Detection(None, "no NVIDIA driver lists a card")
    if mine := [name for name in found if name in models]:
        return Detection(None, f"{mine[0]} is here, but the profile has no kernels: it only plans")
    return Detection(None, f"the card here is {', '.join(dict.fromkeys(found))}")
