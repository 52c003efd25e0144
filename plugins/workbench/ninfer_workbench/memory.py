"""The ledger of a plan in detail: weights by role and format, state by name, room for context."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_core.api import PagedStateSpec, ParameterSpec, SlotStateSpec
from ninfer_core.config import EnginePlan
from ninfer_core.config.capacity import image_pages
from ninfer_core.config.ledger import host_line
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_workbench.placement import (
    EXPERT_CACHE,
    EXPERTS,
    ONE_MACHINE,
    Placement,
    cached_share,
    page_bytes,
    placed,
    state_layout,
    stored_bytes,
)

Row = tuple[str, str, str]


def memory_rows(plan: EnginePlan, placement: Placement = ONE_MACHINE) -> Iterator[Row]:
    """Claims, each followed by its parts; their sum, the budget, and the context it has room for.
    Of several machines they are those of each.
    """
    details = {"weights": weight_rows, "state": state_rows}
    ledger = placed(plan, placement).ledger
    for line in ledger.lines:
        yield line.name, f"{line.nbytes:,} B", line.arithmetic
        if line.name in details:
            rows = details[line.name](plan, placement)
            yield from ((f"- {name}", size, why) for name, size, why in rows)
    yield "total", f"{ledger.total_bytes:,} B", "fits" if ledger.fits else "DOES NOT FIT"
    yield "budget", f"{ledger.budget_bytes:,} B", ledger.budget_source
    yield from host_rows(plan, placement)
    if plan.config.host_capacity and plan.hardware.device != "cpu":
        host = host_line(plan.config.host_capacity, state_layout(plan))
        yield "pinned host memory", f"{host.nbytes:,} B", f"{host.arithmetic}; not of the budget"
    if tier := plan.state_tier:
        size, place = plan.config.disk_capacity, plan.config.disk_cache
        yield f"state tier {tier.spec.name}", f"{size:,} B", f"at most, in {place}"
    if state_layout(plan).bytes_per_token:
        yield _room(plan, placement)
    if plan.config.prefix_cache:
        yield _kept_state(plan, placement)


def weight_rows(plan: EnginePlan, placement: Placement = ONE_MACHINE) -> Iterator[Row]:
    """Stored tensors that the parameters use, each once, by role and format."""
    groups: dict[tuple[str, str], list[ParameterSpec]] = {}
    tensors: dict[tuple[str, str], set[str]] = {}
    seen: dict[str, tuple[str, str]] = {}
    for spec in filter(placement.is_on_card, plan.parameters):
        for tensor, _, _ in plan.artifact.parts(spec.tied_to or spec.name):
            key = seen.setdefault(tensor.id, (role(spec), tensor.format))
            groups.setdefault(key, []).append(spec)
            tensors.setdefault(key, set()).add(tensor.id)
    for key, specs in sorted(groups.items()):
        nbytes = stored_bytes(plan.artifact, specs, placement)
        yield key[0], f"{nbytes:,} B", f"{key[1]}, {len(tensors[key])} tensors"


def host_rows(plan: EnginePlan, placement: Placement) -> Iterator[Row]:
    """Weights that are in host memory or files instead, whole on every machine."""
    tables = [spec for spec in plan.parameters if spec.on_host]
    if tables:
        size = stored_bytes(plan.artifact, tables, ONE_MACHINE)
        names = ", ".join(spec.name for spec in tables)
        yield "tables at the host", f"{size:,} B", f"{names}; in memory or files, not of the budget"
    if placement.experts_on_host:
        experts = [spec for spec in plan.parameters if EXPERTS in spec.name]
        size = stored_bytes(plan.artifact, experts, ONE_MACHINE)
        yield ("experts at the host", f"{size:,} B",
               f"of which the card caches {cached_share(plan, placement):.1%}; planned only: no "
               "kernel of this project reads experts from there")


def role(spec: ParameterSpec) -> str:
    """What a parameter is for, whatever its layer or expert: ``text/attention``, ``mtp/mlp``;
    ``text/direct`` for all that no product reads (norms, biases)."""
    component, *words = spec.name.split("/")
    if spec.kind == "direct":
        return f"{component}/direct"
    words = [word for word in words if word != "layers" and not word.isdecimal()]
    return "/".join([component, *(words[:-1] or words)])


def state_rows(plan: EnginePlan, placement: Placement = ONE_MACHINE) -> Iterator[Row]:
    """Pages and slots by declared state; padding included."""
    num_pages, num_slots = plan.num_pages + 1, plan.config.max_concurrency + 1
    for spec in plan.states:
        layout, share = state_layout(plan, spec), placement.share(spec.name)
        if isinstance(spec, PagedStateSpec):
            token = round(share * layout.bytes_per_token)
            yield (spec.name, f"{num_pages * token * PAGE_TOKENS:,} B",
                   f"{num_pages} pages x {PAGE_TOKENS} tokens x {token:,} B "
                   f"({spec.layers} layers, {spec.dtype or plan.kv.name})")
        else:
            nbytes = round(num_slots * share * layout.slot_bytes)
            yield spec.name, f"{nbytes:,} B", _slots(num_slots, share, layout, spec)


def _slots(num_slots: int, share: float, layout: StateLayout, spec: SlotStateSpec) -> str:
    committed, record = round(share * layout.committed_bytes), round(share * layout.record_bytes)
    return (f"{num_slots} slots x ({committed:,} B + record {record:,} B)"
            f" ({spec.layers} layers, {spec.dtype})")


def _kept_state(plan: EnginePlan, placement: Placement) -> Row:
    """What the prefix cache takes for a restore point beside pages that it shares."""
    page = page_bytes(plan, placement) or state_layout(plan).page_bytes
    slots = [(placement.share(spec.name), state_layout(plan, spec))
             for spec in plan.states if isinstance(spec, SlotStateSpec)]
    pieces = (sum(share * each.committed_bytes for share, each in slots),
              sum(share * each.record_bytes for share, each in slots))
    pages = image_pages(pieces, page) + (state_layout(plan).bytes_per_token > 0)
    return ("kept state", f"{pages * page:,} B",
            f"at most {pages} of {plan.num_pages} pages for a slot's image and the last page, "
            "beside full pages, which are shared")


def _room(plan: EnginePlan, placement: Placement) -> Row:
    """Tokens of all sequences together, were the pool to take whatever else leaves."""
    ledger, page = placed(plan, placement).ledger, page_bytes(plan, placement)
    kept = sum(line.nbytes for line in ledger.lines if line.name != EXPERT_CACHE)
    others = kept - plan.num_pages * page
    pages = max(0, (ledger.budget_bytes - others) // page)
    return ("room for context", f"{pages * PAGE_TOKENS:,} tokens",
            f"({ledger.budget_bytes:,} B - {others:,} B) / pages of {page:,} B "
            f"x {PAGE_TOKENS} tokens, in kv-dtype {plan.kv.name}")
