"""What a step reads of some parameters, and computes with them, counted from the catalogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from attrs import field, frozen

from ninfer_core.api import MachineFigures, ParameterSpec
from ninfer_core.config import EnginePlan
from ninfer_workbench.placement import EXPERTS, Placement, stored_bytes

NARROW = {"AllowA8": ("float8_e4m3fn",), "AllowA4": ("float4_e2m1fn_x2", "float8_e4m3fn")}
"""Activation policy of a use -> what its activations may also be, narrowest first."""


@frozen(eq=False)
class Matrices:
    """Some of the parameters.

    :ivar nbytes: that every step reads. :ivar row_bytes: gathered of tables, a row.
    :ivar host_row_bytes: gathered of tables in host memory.
    :ivar expert_bytes: of all routed experts. :ivar chosen: of ``num_experts``, by a row.
    :ivar flops: a row, by activation dtype.
    """

    nbytes: int = 0
    row_bytes: int = 0
    host_row_bytes: int = 0
    expert_bytes: int = 0
    chosen: int = 1
    num_experts: int = 1
    flops: Mapping[str, int] = field(factory=dict)

    def read(self, num_rows: int) -> int:
        """Bytes that a step of so many rows reads."""
        return self.nbytes + num_rows * self.row_bytes + self.read_of_experts(num_rows)

    def read_of_experts(self, num_rows: int) -> int:
        """Rows choose experts independently, all alike: ``E (1 - (1 - k / E)^rows)`` distinct ones
        are expected."""
        missed = (1 - self.chosen / self.num_experts) ** num_rows
        return round(self.expert_bytes * (1 - missed))


def matrices(
    plan: EnginePlan, figures: MachineFigures, specs: Iterable[ParameterSpec],
    placement: Placement,
) -> Matrices:
    """Count some parameters of a plan, as one machine has them."""
    always: list[ParameterSpec] = []
    tables: list[ParameterSpec] = []
    routed: list[ParameterSpec] = []
    for spec in specs:
        kind = tables if spec.kind == "table" else routed if EXPERTS in spec.name else always
        kind.append(spec)
    sizes = plan.operations
    chosen, num_experts = sizes.get("experts_per_token", 1), sizes.get("num_experts", 1)
    flops = _flops(plan, figures, always, placement)
    for dtype, each in _flops(plan, figures, routed, placement).items():
        flops[dtype] += each * chosen // num_experts
    far = [spec for spec in tables if spec.on_host and figures.host_bytes_per_s]
    return Matrices(
        nbytes=stored_bytes(plan.artifact, always, placement),
        row_bytes=_row_bytes(plan, [spec for spec in tables if spec not in far]),
        host_row_bytes=_row_bytes(plan, far),
        expert_bytes=stored_bytes(plan.artifact, routed, placement),
        chosen=chosen, num_experts=num_experts, flops=flops,
    )


def _row_bytes(plan: EnginePlan, tables: Iterable[ParameterSpec]) -> int:
    """What a token takes of tables, of which every machine has all."""
    counts = plan.operations.get("gathered_rows", {})
    return sum(
        tensor.bytes // tensor.num_rows * counts.get(spec.name, 1)
        for spec in tables for tensor, _, _ in plan.artifact.parts(spec.tied_to or spec.name)
    )


def _flops(
    plan: EnginePlan, figures: MachineFigures, specs: Iterable[ParameterSpec],
    placement: Placement,
) -> Counter[str]:
    """Operations of products, a row."""
    policies: dict[str, set[str | None]] = {}
    for use in plan.artifact.uses:
        policies.setdefault(use.parameter, set()).add(use.activation_policy)
    flops: Counter[str] = Counter()
    for spec in specs:
        if spec.kind == "projection":
            narrow = _narrow(policies.get(spec.tied_to or spec.name, {None}), figures)
            own = round(2 * prod(spec.shape) * placement.share(spec.name))
            flops[narrow or plan.hardware.compute_dtype] += own
    return flops


def _narrow(policies: Iterable[str | None], figures: MachineFigures) -> str | None:
    """The narrowest activations that all uses of a matrix allow and the machine has a rate of."""
    allowed = [NARROW.get(policy or "", ()) for policy in policies]
    common = (dtype for dtype in NARROW["AllowA4"] if all(dtype in each for each in allowed))
    return next((dtype for dtype in common if dtype in figures.flops), None)
