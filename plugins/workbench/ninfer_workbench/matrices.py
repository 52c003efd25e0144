"""What a step reads of some parameters, and computes with them, counted from the catalogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from attrs import field, frozen

from ninfer_core.api import MachineFigures, ParameterSpec
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.config import EnginePlan

EXPERTS = "/experts/"
"""In the names of parameters of routed experts, see `ModelPack.operations`."""

NARROW = {"AllowA8": ("float8_e4m3fn",), "AllowA4": ("float4_e2m1fn_x2", "float8_e4m3fn")}
"""Activation policy of a use -> what its activations may also be, narrowest first."""


@frozen(eq=False)
class Matrices:
    """Some of the parameters.

    :ivar nbytes: that every step reads. :ivar row_bytes: gathered of tables, a row.
    :ivar expert_bytes: of all routed experts. :ivar chosen: of ``num_experts``, by a row.
    :ivar flops: a row, by activation dtype.
    """

    nbytes: int = 0
    row_bytes: int = 0
    expert_bytes: int = 0
    chosen: int = 1
    num_experts: int = 1
    flops: Mapping[str, int] = field(factory=dict)

    def read(self, num_rows: int) -> int:
        """Bytes that a step of so many rows reads. Rows choose experts independently, all alike:
        ``E (1 - (1 - k / E)^rows)`` distinct ones are expected."""
        missed = (1 - self.chosen / self.num_experts) ** num_rows
        return self.nbytes + num_rows * self.row_bytes + round(self.expert_bytes * (1 - missed))


def matrices(
    plan: EnginePlan, figures: MachineFigures, specs: Iterable[ParameterSpec]
) -> Matrices:
    """Count some parameters of a plan."""
    always: list[ParameterSpec] = []
    tables: list[ParameterSpec] = []
    routed: list[ParameterSpec] = []
    for spec in specs:
        kind = tables if spec.kind == "table" else routed if EXPERTS in spec.name else always
        kind.append(spec)
    sizes = plan.operations
    chosen, num_experts = sizes.get("experts_per_token", 1), sizes.get("num_experts", 1)
    flops = _flops(plan, figures, always)
    for dtype, each in _flops(plan, figures, routed).items():
        flops[dtype] += each * chosen // num_experts
    return Matrices(
        nbytes=sum(tensor.bytes for tensor in _stored(plan, always)),
        row_bytes=sum(tensor.bytes // tensor.num_rows for tensor in _stored(plan, tables)),
        expert_bytes=sum(tensor.bytes for tensor in _stored(plan, routed)),
        chosen=chosen, num_experts=num_experts, flops=flops,
    )


def _stored(plan: EnginePlan, specs: Iterable[ParameterSpec]) -> Iterator[TensorObject]:
    """The stored tensors of parameters, each once."""
    parts = (part for s in specs for part in plan.artifact.parts(s.tied_to or s.name))
    yield from {tensor.id: tensor for tensor, _, _ in parts}.values()


def _flops(
    plan: EnginePlan, figures: MachineFigures, specs: Iterable[ParameterSpec]
) -> Counter[str]:
    """Operations of products, a row."""
    policies: dict[str, set[str | None]] = {}
    for use in plan.artifact.uses:
        policies.setdefault(use.parameter, set()).add(use.activation_policy)
    flops: Counter[str] = Counter()
    for spec in specs:
        if spec.kind == "projection":
            narrow = _narrow(policies.get(spec.tied_to or spec.name, {None}), figures)
            flops[narrow or plan.hardware.compute_dtype] += 2 * prod(spec.shape)
    return flops


def _narrow(policies: Iterable[str | None], figures: MachineFigures) -> str | None:
    """The narrowest activations that all uses of a matrix allow and the machine has a rate of."""
    allowed = [NARROW.get(policy or "", ()) for policy in policies]
    common = (dtype for dtype in NARROW["AllowA4"] if all(dtype in each for each in allowed))
    return next((dtype for dtype in common if dtype in figures.flops), None)
