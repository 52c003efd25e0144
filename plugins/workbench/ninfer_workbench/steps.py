"""The steps of a model: what prefill, decode, verification and drafts read and compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import frozen

from ninfer_core.api import (
    MachineFigures,
    PagedStateSpec,
    ParameterSpec,
    StateSpec,
    UnsupportedError,
)
from ninfer_core.config import EnginePlan
from ninfer_workbench.matrices import Matrices, matrices
from ninfer_workbench.placement import ONE_MACHINE, Placement, state_layout
from ninfer_workbench.work import Work

DRAFT_HEAD = "proposal"
"""Component of a head that only drafts use."""

EXCHANGES_PER_DRAFT = 2
"""Sums over machines of a predictor, which is one layer."""


@frozen(eq=False)
class Context:
    """What a step meets of the tokens before it.

    :ivar nbytes: of a token. :ivar flops: operations of a row and token.
    :ivar selected_bytes: the same of those that attention selects, ``most`` for each row.
    :ivar selected_flops: operations of a row and token of those.
    """

    nbytes: int
    flops: int
    selected_bytes: int = 0
    selected_flops: int = 0
    most: int = 0

    def read(self, num_rows: int, context: int) -> int:
        """Bytes; rows select different tokens, as far as there are."""
        selected = min(context, num_rows * self.most)
        return context * self.nbytes + selected * self.selected_bytes

    def operations(self, num_rows: int, context: int) -> int:
        """A row meets the context and, on average, half of the step's other rows."""
        seen = context + num_rows // 2
        return num_rows * (seen * self.flops + min(seen, self.most) * self.selected_flops)


@frozen(eq=False)
class Part:
    """The target model, or the predictor that drafts for it, on one of the machines that share it.

    :ivar body: all but the head. :ivar dtype: of attention.
    :ivar exchanges: sums over machines. :ivar row_exchange_bytes: of all these, for a row.
    :ivar misses: share of chosen experts that come from the host.
    """

    body: Matrices
    head: Matrices
    context: Context
    launches: int
    dtype: str
    exchanges: int = 0
    row_exchange_bytes: int = 0
    misses: float = 0.0

    def step(self, num_rows: int, context: int, *, logits: int) -> Work:
        """A step of one sequence: it reads the weights and what it needs of its context. Experts
        that come from the host are written before they are read.

        :param logits: rows that go through the head.
        """
        fetched = round(self.misses * self.body.read_of_experts(num_rows))
        nbytes = self.body.read(num_rows) + fetched + self.context.read(num_rows, context)
        flops = Counter({dtype: num_rows * each for dtype, each in self.body.flops.items()})
        if logits:
            nbytes += self.head.read(1)
            flops.update({dtype: logits * each for dtype, each in self.head.flops.items()})
        flops[self.dtype] += self.context.operations(num_rows, context)
        return Work(
            nbytes, flops, self.launches, fetched + num_rows * self.body.host_row_bytes,
            self.exchanges, num_rows * self.row_exchange_bytes,
        )


@frozen(eq=False)
class Steps:
    """What one sequence asks of the machine, step by step.

    :ivar predictor: None if nothing of the model drafts.
    :ivar slot_bytes: committed slot state. :ivar record_bytes: of the rows of an uncertain step.
    """

    target: Part
    predictor: Part | None
    slot_bytes: int
    record_bytes: int

    def decode(self, context: int) -> Work:
        """One token; the slot state is read and written."""
        return self.target.step(1, context, logits=1) + Work(2 * self.slot_bytes)

    def verify(self, num_rows: int, context: int) -> Work:
        """One token and its drafts; the rows are recorded for the next step, which reads them."""
        step = self.target.step(num_rows, context, logits=num_rows)
        return step + Work(2 * (self.slot_bytes + self.record_bytes))

    def prefill(self, num_rows: int, context: int) -> Work:
        """A chunk of a prompt, which the predictor reads too."""
        step = self.target.step(num_rows, context, logits=1) + Work(2 * self.slot_bytes)
        if self.predictor is None:
            return step
        return step + self.predictor.step(num_rows, context, logits=0)

    def draft(self, num_rows: int, context: int) -> Work:
        """A step of the predictor over as many rows; it gives one draft."""
        if self.predictor is None:
            return Work()
        return self.predictor.step(num_rows, context, logits=1)


def model_steps(
    plan: EnginePlan, figures: MachineFigures, placement: Placement = ONE_MACHINE, *,
    misses: float = 0.0,
) -> Steps:
    """The steps of a plan's model.

    :param misses: share of chosen experts that come from the host.
    :raises UnsupportedError: if the figures have no rate for the profile's activations.
    """
    dtype, sizes = plan.hardware.compute_dtype, plan.operations
    if dtype not in figures.flops:
        raise UnsupportedError("cannot predict", where=figures.name, why=f"no rate of {dtype}")
    drafter = plan.speculator.component if plan.speculator else ""
    parts = {name: matrices(plan, figures, specs, placement)
             for name, specs in _parts(plan, drafter).items()}
    head = parts.get("head", Matrices())
    own, others = _paged_states(plan, drafter)
    layers = max(1, sum(spec.layers for spec in others))
    share = sum(spec.layers for spec in own) / layers
    exchanges = sizes.get("exchanges_per_step", 0) if placement.ranks > 1 else 0
    sum_bytes = 2 * sizes.get("exchange_width", 0)  # partial sums travel in bf16
    predictor = None if drafter not in parts else Part(
        parts[drafter], parts.get(DRAFT_HEAD, head), _context(plan, placement, own, share),
        sizes.get("launches_per_draft", 0), dtype, exchanges and EXCHANGES_PER_DRAFT,
        exchanges and EXCHANGES_PER_DRAFT * sum_bytes, misses,
    )
    target = Part(
        parts["target"], head, _context(plan, placement, others, 1.0), sizes["launches_per_step"],
        dtype, exchanges, exchanges * sum_bytes, misses,
    )
    slots = [spec for spec in plan.states if not isinstance(spec, PagedStateSpec)]
    return Steps(target, predictor, *_slot_bytes(plan, placement, slots))


def _slot_bytes(
    plan: EnginePlan, placement: Placement, slots: Sequence[StateSpec]
) -> tuple[int, int]:
    """Committed, and of the rows of an uncertain step."""
    layouts = [(placement.share(spec.name), state_layout(plan, spec)) for spec in slots]
    return (round(sum(share * layout.committed_bytes for share, layout in layouts)),
            round(sum(share * layout.record_bytes for share, layout in layouts)))


def _parts(plan: EnginePlan, drafter: str) -> Mapping[str, list[ParameterSpec]]:
    """Parameters by use: ``target``, its ``head``, and components of drafts under their names."""
    parts: dict[str, list[ParameterSpec]] = {"target": []}
    for spec in plan.parameters:
        component = spec.name.partition("/")[0]
        is_head = spec.kind == "projection" and spec.shape[0] == plan.operations["vocab_size"]
        own = component in (drafter, DRAFT_HEAD)
        parts.setdefault(component if own else "head" if is_head else "target", []).append(spec)
    return parts


def _paged_states(
    plan: EnginePlan, drafter: str
) -> tuple[list[PagedStateSpec], list[PagedStateSpec]]:
    """Those that are the predictor's (named ``{component}_...``), and the others."""
    paged = [spec for spec in plan.states if isinstance(spec, PagedStateSpec)]
    own = [spec for spec in paged if drafter and spec.name.startswith(f"{drafter}_")]
    return own, [spec for spec in paged if spec not in own]


def _context(
    plan: EnginePlan, placement: Placement, specs: Sequence[PagedStateSpec], share: float
) -> Context:
    """What rows meet of some of the states; operations are a share of the target's, since the
    predictor's layers are taken to be like those."""
    sizes = plan.operations
    selected = [spec for spec in specs if spec.name in sizes.get("selected_states", ())]
    flops = sizes["attention_flops_per_token"], sizes.get("selected_flops_per_token", 0)
    whole, part = (
        round(sum(placement.share(spec.name) * state_layout(plan, spec).bytes_per_token
                  for spec in some))
        for some in ([spec for spec in specs if spec not in selected], selected)
    )
    return Context(whole, round(share * flops[0]), part, round(share * flops[1]),
                   sizes.get("selected_tokens", 0))
