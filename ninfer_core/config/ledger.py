"""Where the bytes of a launch go, counted before the first is allocated."""

from __future__ import annotations

from math import prod

import torch
from attrs import frozen

from ninfer_core.api import CapacityError, HardwareProfile, KernelWork
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
    if scratch := hardware.scratch_bytes(_kernel_work(config, model)):
        lines.append(LedgerLine("kernels", scratch, "what they keep, says the profile (estimate)"))
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
    """Stored tensors that the parameters use, each once; without tables that stay on the host."""
    specs = [spec for spec in model.parameters if not spec.tied_to]
    used, beside = (
        {t.id: t.bytes for spec in specs if spec.on_host == on_host
         for t, _, _ in model.artifact.parts(spec.name)}
        for on_host in (False, True)
    )
    arithmetic = f"{len(used)} stored tensors of {len(specs)} parameters"
    if beside:
        arithmetic += f"; {sum(beside.values()):,} B of tables stay in host memory or files"
    return LedgerLine("weights", sum(used.values()), arithmetic)


def _state(layout: StateLayout, num_pages: int, num_slots: int) -> LedgerLine:
    pages, slots = (num_pages + 1) * layout.page_bytes, (num_slots + 1) * layout.slot_bytes
    return LedgerLine(
        "state", pages + slots,
        f"({num_pages} + 1 padding) pages x {layout.page_bytes:,} B"
        f" + ({num_slots} + 1 padding) slots x {layout.slot_bytes:,} B",
    )


def _kernel_work(config: LaunchConfig, model: ModelPlan) -> KernelWork:
    vocab, sizes = model.operations["vocab_size"], model.operations
    shapes = {
        tensor.shape for spec in model.parameters
        if spec.kind == "projection" and vocab not in spec.shape and "/experts/" not in spec.name
        and not spec.name.startswith("proposal/")
        for tensor, _, _ in model.artifact.parts(spec.tied_to or spec.name)
    }
    matrices = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    experts = {spec.shape[0] for spec in model.parameters if "/experts/" in spec.name}
    return KernelWork(
        matrix=max(matrices, key=prod, default=(0, 0)), max_tokens=config.step_tokens,
        decode_tokens=config.max_concurrency * config.max_verify_rows,
        max_context=config.max_context or 0,
        attention_width=sizes.get("attention_width", 0), index_block=sizes.get("index_block", 0),
        pair_width=sizes.get("experts_per_token", 0) * max(experts, default=0),
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
