"""Where the bytes of a launch go, counted before the first is allocated."""

from __future__ import annotations

import torch
from attrs import frozen

from ninfer_core.api import CapacityError, HardwareProfile
from ninfer_core.config.capacity import Pool
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.model import ModelPlan
from ninfer_core.state.layout import StateLayout


@frozen
class LedgerLine:
    """One claim on memory.

    :ivar arithmetic: how ``nbytes`` comes about, in numbers.
    """

    name: str
    nbytes: int
    arithmetic: str


@frozen
class Ledger:
    """Claims against the budget of a machine.

    :ivar budget_source: where ``budget_bytes`` comes from.
    """

    lines: tuple[LedgerLine, ...]
    budget_bytes: int
    budget_source: str

    @property
    def total_bytes(self) -> int:
        return sum(line.nbytes for line in self.lines)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.budget_bytes

    def check(self) -> None:
        """Raise `CapacityError` with both numbers if the budget does not suffice."""
        if not self.fits:
            claims = " + ".join(f"{line.name} {line.nbytes:,}" for line in self.lines)
            raise CapacityError(
                "the model does not fit in memory",
                why=f"{claims} = {self.total_bytes:,} bytes; "
                f"the budget is {self.budget_bytes:,} bytes ({self.budget_source})",
                fix="lower --max-context or --context-capacity, or choose a smaller --kv-dtype",
            )


def draw_up(
    config: LaunchConfig, model: ModelPlan, hardware: HardwareProfile, layout: StateLayout,
    max_logits: int, pool: Pool,
) -> tuple[LedgerLine, ...]:
    """The lines of a launch. Host memory for states counts where it is the machine's own."""
    lines = [
        _weights(model), _state(layout, pool.num_pages, config.max_concurrency),
        _workspace(config.step_tokens, max_logits, model, hardware.compute_dtype),
    ]
    if config.host_capacity and hardware.device == "cpu":
        lines.append(host_line(config.host_capacity, layout))
    if pool.reserve_bytes:
        lines.append(LedgerLine("reserve", pool.reserve_bytes, "left to others, because of auto"))
    return tuple(lines)


def host_line(capacity: int, layout: StateLayout) -> LedgerLine:
    """Pages in host memory for states that leave the pool."""
    num_pages = capacity // layout.page_bytes
    nbytes = (num_pages + 1) * layout.page_bytes if num_pages else 0
    pages = f"({num_pages} + 1 padding) pages x {layout.page_bytes:,} B"
    return LedgerLine("host", nbytes, f"{pages} for states that leave the pool")


def _weights(model: ModelPlan) -> LedgerLine:
    """Stored tensors that the parameters use, each once."""
    names = [spec.name for spec in model.parameters if not spec.tied_to]
    used = {t.id: t.bytes for name in names for t, _, _ in model.artifact.parts(name)}
    arithmetic = f"{len(used)} stored tensors of {len(names)} parameters"
    return LedgerLine("weights", sum(used.values()), arithmetic)


def _state(layout: StateLayout, num_pages: int, num_slots: int) -> LedgerLine:
    pages, slots = (num_pages + 1) * layout.page_bytes, (num_slots + 1) * layout.slot_bytes
    return LedgerLine(
        "state", pages + slots,
        f"({num_pages} + 1 padding) pages x {layout.page_bytes:,} B"
        f" + ({num_slots} + 1 padding) slots x {layout.slot_bytes:,} B",
    )


def _workspace(tokens: int, logits: int, model: ModelPlan, dtype: str) -> LedgerLine:
    """Activations and logits. Layers share buffers, so a shape of projection counts once; heads
    give logits."""
    vocab, size = model.operations["vocab_size"], getattr(torch, dtype).itemsize
    bodies = {
        spec.shape for spec in model.parameters
        if spec.kind == "projection" and not spec.name.startswith("proposal/")
    }
    width = sum(sum(shape) for shape in bodies if vocab not in shape)
    return LedgerLine(
        "workspace", tokens * width * size + logits * vocab * 4,
        f"{tokens} tokens x {width:,} activations x {size} B"
        f" + {logits} rows x {vocab:,} logits x 4 B (estimate)",
    )
