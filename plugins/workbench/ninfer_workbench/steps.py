"""The steps of a model: what prefill, decode, verification and drafts read and compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import frozen

from ninfer_core.api import MachineFigures, PagedStateSpec, ParameterSpec, UnsupportedError
from ninfer_core.config import EnginePlan
from ninfer_workbench.matrices import Matrices, matrices
from ninfer_workbench.memory import state_layout
from ninfer_workbench.work import Work

DRAFT_HEAD = "proposal"
"""Component of a head that only drafts use."""


@frozen(eq=False)
class Part:
    """The target model, or the predictor that drafts for it.

    :ivar body: all but the head. :ivar kv_bytes: of a token of context.
    :ivar attention: operations of a row and token of context, in ``dtype``.
    """

    body: Matrices
    head: Matrices
    kv_bytes: int
    attention: int
    launches: int
    dtype: str

    def step(self, num_rows: int, context: int, *, logits: int) -> Work:
        """A step of one sequence: it reads the weights and the KV cache of its context.

        :param logits: rows that go through the head.
        """
        nbytes = self.body.read(num_rows) + context * self.kv_bytes
        flops = Counter({dtype: num_rows * each for dtype, each in self.body.flops.items()})
        if logits:
            nbytes += self.head.read(1)
            flops.update({dtype: logits * each for dtype, each in self.head.flops.items()})
        # a row meets the context and, on average, half of the step's other rows
        flops[self.dtype] += num_rows * (context + num_rows // 2) * self.attention
        return Work(nbytes, flops, self.launches)


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


def model_steps(plan: EnginePlan, figures: MachineFigures) -> Steps:
    """The steps of a plan's model.

    :raises UnsupportedError: if the figures have no rate for the profile's activations.
    """
    dtype, sizes = plan.hardware.compute_dtype, plan.operations
    if dtype not in figures.flops:
        raise UnsupportedError("cannot predict", where=figures.name, why=f"no rate of {dtype}")
    drafter = plan.speculator.component if plan.speculator else ""
    parts = {name: matrices(plan, figures, specs) for name, specs in _parts(plan, drafter).items()}
    head, layout = parts.get("head", Matrices()), state_layout(plan)
    own_bytes, share = _own_state(plan, drafter)
    attention = sizes["attention_flops_per_token"]
    predictor = None if drafter not in parts else Part(
        parts[drafter], parts.get(DRAFT_HEAD, head), own_bytes, round(attention * share),
        sizes.get("launches_per_draft", 0), dtype,
    )
    target = Part(parts["target"], head, layout.bytes_per_token - own_bytes, attention,
                  sizes["launches_per_step"], dtype)
    return Steps(target, predictor, layout.committed_bytes, layout.record_bytes)


def _parts(plan: EnginePlan, drafter: str) -> Mapping[str, list[ParameterSpec]]:
    """Parameters by use: ``target``, its ``head``, and components of drafts under their names."""
    parts: dict[str, list[ParameterSpec]] = {"target": []}
    for spec in plan.parameters:
        component = spec.name.partition("/")[0]
        is_head = spec.kind == "projection" and spec.shape[0] == plan.operations["vocab_size"]
        own = component in (drafter, DRAFT_HEAD)
        parts.setdefault(component if own else "head" if is_head else "target", []).append(spec)
    return parts


def _own_state(plan: EnginePlan, drafter: str) -> tuple[int, float]:
    """Of paged state that is the predictor's (named ``{component}_...``): bytes of a token, and its
    layers over the target's, which are taken to be like them."""
    paged = [spec for spec in plan.states if isinstance(spec, PagedStateSpec)]
    own = [spec for spec in paged if drafter and spec.name.startswith(f"{drafter}_")]
    if not own:
        return 0, 0.0
    layers = sum(spec.layers for spec in own)
    others = sum(spec.layers for spec in paged) - layers
    return state_layout(plan, *own).bytes_per_token, layers / max(others, 1)
