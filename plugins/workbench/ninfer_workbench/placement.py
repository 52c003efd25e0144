"""Where weights and state are: on how many machines, and what of them waits in host memory.

For prediction only: no kernel of this project copies experts from the host, and no engine of it
shares a step among machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import fsum

from attrs import evolve, frozen

from ninfer_core.api import (
    MachineFigures,
    PagedStateSpec,
    ParameterSpec,
    StateSpec,
    UnsupportedError,
)
from ninfer_core.artifact.container import Artifact
from ninfer_core.config import EnginePlan
from ninfer_core.config.ledger import Ledger, LedgerLine
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import PAGE_TOKENS

EXPERTS = "/experts/"
"""In the names of parameters of routed experts, see `ModelPack.operations`."""

EXPERT_CACHE = "expert cache"
"""Line of a ledger: what is left of a card, for experts whose home is the host."""


@frozen
class Placement:
    """:ivar ranks: machines that share every step. :ivar replicated: patterns of names of what each
        of them holds whole; everything else they hold in equal shares.
    :ivar experts_on_host: whether routed experts are in host memory, and come when they are chosen.
    """

    ranks: int = 1
    replicated: tuple[str, ...] = ()
    experts_on_host: bool = False

    def share(self, name: str) -> float:
        """What a machine holds of a parameter or state."""
        whole = self.ranks == 1 or any(fnmatchcase(name, each) for each in self.replicated)
        return 1.0 if whole else 1 / self.ranks

    def is_on_card(self, spec: ParameterSpec) -> bool:
        return not spec.on_host and not (self.experts_on_host and EXPERTS in spec.name)


ONE_MACHINE = Placement()


def placement_of(
    plan: EnginePlan, figures: MachineFigures, *, experts_on_host: bool = False
) -> Placement:
    """As the machine has it; raises `UnsupportedError` if experts cannot be as wished."""
    if experts_on_host and not figures.host_bytes_per_s:
        why = "its memory is the host's, or its link to the host is not known"
        raise UnsupportedError("experts cannot wait in host memory", where=figures.name, why=why)
    if experts_on_host and not any(EXPERTS in spec.name for spec in plan.parameters):
        raise UnsupportedError("no experts can wait in host memory", why="the model has none")
    if figures.ranks > 1 and "replicated" not in plan.operations:
        raise UnsupportedError(
            f"cannot plan for {figures.ranks} machines", where=plan.pack.spec.name,
            why="the model pack does not say what each of them holds",
        )
    return Placement(figures.ranks, tuple(plan.operations.get("replicated", ())), experts_on_host)


def stored_bytes(
    artifact: Artifact, specs: Iterable[ParameterSpec], placement: Placement
) -> int:
    """What one machine stores of parameters, each part of an object once."""
    parts = {
        (tensor.id, begin):
            tensor.bytes * (end - begin) / tensor.num_elements * placement.share(spec.name)
        for spec in specs for tensor, begin, end in artifact.parts(spec.tied_to or spec.name)
    }
    return round(fsum(parts.values()))


def state_layout(plan: EnginePlan, *specs: StateSpec) -> StateLayout:
    """Sizes of some of a plan's states, or of all."""
    return StateLayout(specs or plan.states, plan.kv, max_verify_rows=plan.max_verify_rows)


def page_bytes(plan: EnginePlan, placement: Placement) -> int:
    """Of a page, on one machine."""
    sizes = (
        placement.share(spec.name) * state_layout(plan, spec).bytes_per_token
        for spec in plan.states if isinstance(spec, PagedStateSpec)
    )
    return round(PAGE_TOKENS * fsum(sizes))


def placed(plan: EnginePlan, placement: Placement) -> EnginePlan:
    """The plan with the ledger of one machine."""
    if placement.ranks == 1 and not placement.experts_on_host:
        return plan
    lines = [_placed(line, plan, placement) for line in plan.ledger.lines]
    if placement.experts_on_host:
        left = max(0, plan.ledger.budget_bytes - sum(line.nbytes for line in lines))
        lines.append(LedgerLine(EXPERT_CACHE, left, "all that is left"))
    ledger = Ledger(tuple(lines), plan.ledger.budget_bytes, plan.ledger.budget_source)
    return evolve(plan, ledger=ledger)


def _placed(line: LedgerLine, plan: EnginePlan, placement: Placement) -> LedgerLine:
    of_each = f" on each of {placement.ranks} machines" if placement.ranks > 1 else ""
    if line.name == "weights":
        specs = [spec for spec in plan.parameters if placement.is_on_card(spec)]
        left_out = ", without routed experts" if placement.experts_on_host else ""
        nbytes = stored_bytes(plan.artifact, specs, placement)
        return LedgerLine(line.name, nbytes, f"{len(specs)} parameters{left_out}{of_each}")
    if line.name == "state":
        num_pages, num_slots = plan.num_pages + 1, plan.config.max_concurrency + 1
        page = page_bytes(plan, placement)
        slot = round(fsum(
            placement.share(spec.name) * state_layout(plan, spec).slot_bytes
            for spec in plan.states if not isinstance(spec, PagedStateSpec)
        ))
        arithmetic = f"{num_pages} pages x {page:,} B + {num_slots} slots x {slot:,} B{of_each}"
        return LedgerLine(line.name, num_pages * page + num_slots * slot, arithmetic)
    return line


def cached_share(plan: EnginePlan, placement: Placement) -> float:
    """Of the experts, what the card has room for beside all else: as often a chosen one is found
    there, were all alike."""
    if not placement.experts_on_host:
        return 1.0
    experts = [spec for spec in plan.parameters if EXPERTS in spec.name]
    cache = next(
        line.nbytes for line in placed(plan, placement).ledger.lines if line.name == EXPERT_CACHE
    )
    return min(1.0, cache / stored_bytes(plan.artifact, experts, ONE_MACHINE))
