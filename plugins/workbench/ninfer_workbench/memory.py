"""The ledger of a plan in detail: weights by role and format, state by name, room for context."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_core.api import PagedStateSpec, ParameterSpec, SlotStateSpec, StateSpec
from ninfer_core.config import EnginePlan
from ninfer_core.config.capacity import snapshot_pages
from ninfer_core.config.ledger import host_line
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import PAGE_TOKENS

Row = tuple[str, str, str]


def memory_rows(plan: EnginePlan) -> Iterator[Row]:
    """Claims, each followed by its parts; their sum, the budget, and the context it has room for.
    """
    details = {"weights": weight_rows, "state": state_rows}
    ledger = plan.ledger
    for line in ledger.lines:
        yield line.name, f"{line.nbytes:,} B", line.arithmetic
        if line.name in details:
            yield from ((f"- {name}", size, why) for name, size, why in details[line.name](plan))
    yield "total", f"{ledger.total_bytes:,} B", "fits" if ledger.fits else "DOES NOT FIT"
    yield "budget", f"{ledger.budget_bytes:,} B", ledger.budget_source
    if plan.config.host_capacity and plan.hardware.device != "cpu":
        host = host_line(plan.config.host_capacity, state_layout(plan))
        yield "pinned host memory", f"{host.nbytes:,} B", f"{host.arithmetic}; not of the budget"
    if plan.config.disk_cache:
        yield "files", f"{plan.config.disk_capacity:,} B", f"at most, in {plan.config.disk_cache}"
    if state_layout(plan).bytes_per_token:
        yield _room(plan)
    if plan.config.prefix_cache:
        yield _kept_state(plan)


def weight_rows(plan: EnginePlan) -> Iterator[Row]:
    """Stored tensors that the parameters use, each once, by role and format."""
    sizes: dict[tuple[str, str], list[int]] = {}
    seen: set[str] = set()
    for spec in plan.parameters:
        for tensor, _, _ in plan.artifact.parts(spec.tied_to or spec.name):
            if tensor.id not in seen:
                seen.add(tensor.id)
                sizes.setdefault((role(spec), tensor.format), []).append(tensor.bytes)
    for (name, format), each in sorted(sizes.items()):
        yield name, f"{sum(each):,} B", f"{format}, {len(each)} tensors"


def role(spec: ParameterSpec) -> str:
    """What a parameter is for, whatever its layer or expert: ``text/attention``, ``mtp/mlp``;
    ``text/direct`` for all that no product reads (norms, biases)."""
    component, *words = spec.name.split("/")
    if spec.kind == "direct":
        return f"{component}/direct"
    words = [word for word in words if word != "layers" and not word.isdecimal()]
    return "/".join([component, *(words[:-1] or words)])


def state_rows(plan: EnginePlan) -> Iterator[Row]:
    """Pages and slots by declared state; padding included."""
    num_pages, num_slots = plan.num_pages + 1, plan.config.max_concurrency + 1
    for spec in plan.states:
        layout = state_layout(plan, spec)
        if isinstance(spec, PagedStateSpec):
            yield (spec.name, f"{num_pages * layout.bytes_per_token * PAGE_TOKENS:,} B",
                   f"{num_pages} pages x {PAGE_TOKENS} tokens x {layout.bytes_per_token:,} B "
                   f"({spec.layers} layers, {spec.dtype or plan.kv.name})")
        else:
            yield spec.name, f"{num_slots * layout.slot_bytes:,} B", _slots(num_slots, layout, spec)


def _slots(num_slots: int, layout: StateLayout, spec: SlotStateSpec) -> str:
    return (f"{num_slots} slots x ({layout.committed_bytes:,} B + record {layout.record_bytes:,} B)"
            f" ({spec.layers} layers, {spec.dtype})")


def state_layout(plan: EnginePlan, *specs: StateSpec) -> StateLayout:
    """Sizes of some of a plan's states, or of all."""
    return StateLayout(specs or plan.states, plan.kv, max_verify_rows=plan.max_verify_rows)


def _kept_state(plan: EnginePlan) -> Row:
    """What the prefix cache takes for a restore point beside pages that it shares."""
    layout = state_layout(plan)
    pages = snapshot_pages(layout)
    return ("kept state", f"{pages * layout.page_bytes:,} B",
            f"at most {pages} of {plan.num_pages} pages for a slot's image and the last page, "
            "beside full pages, which are shared")


def _room(plan: EnginePlan) -> Row:
    """Tokens of all sequences together, were the pool to take whatever else leaves."""
    layout, ledger = state_layout(plan), plan.ledger
    others = ledger.total_bytes - plan.num_pages * layout.page_bytes
    pages = max(0, (ledger.budget_bytes - others) // layout.page_bytes)
    return ("room for context", f"{pages * PAGE_TOKENS:,} tokens",
            f"({ledger.budget_bytes:,} B - {others:,} B) / pages of {layout.page_bytes:,} B "
            f"x {PAGE_TOKENS} tokens, in kv-dtype {plan.kv.name}")
