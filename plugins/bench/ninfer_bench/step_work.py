"""What steps must move and compute, counted from a plan."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ninfer_bench.synthetic import stored_tensors
from ninfer_core.api import ParameterSpec, SlotStateSpec
from ninfer_core.config import EnginePlan
from ninfer_core.state.layout import StateLayout

DRAFTING = "mtp/", "proposal/"
"""Parameters of these components are not the model's own."""


def step_bytes(plan: EnginePlan, num_rows: int, num_tokens: int, context: int) -> int:
    """Bytes that a decode step must move: weights once (of experts, those that so many random
    choices meet), slot states read and written, keys and values of the context."""
    own = [each for each in plan.parameters if not each.name.startswith(DRAFTING)]
    slots = sum(
        spec.layers * torch.Size(spec.shape).numel() * getattr(torch, spec.dtype).itemsize
        for spec in plan.states if isinstance(spec, SlotStateSpec)
    )
    per_row = 2 * slots + context * kv_bytes_per_token(plan)
    return int(_weight_bytes(plan, own, num_tokens) + num_rows * per_row)


def draft_bytes(plan: EnginePlan, num_rows: int, context: int) -> int:
    """Bytes that a draft of each row must move: the predictor, its head (the model's own, if drafts
    have none), its keys and values."""
    drafting = [each for each in plan.parameters if each.name.startswith(DRAFTING)]
    if not any(each.name.startswith("proposal/") for each in drafting):
        size = plan.operations["vocab_size"]
        drafting += [each for each in plan.parameters
                     if each.kind == "projection" and each.shape[0] == size]
    own = [spec for spec in plan.states if spec.name.startswith("mtp_")]
    per_token = StateLayout(own, plan.kv, max_verify_rows=1).bytes_per_token
    return int(_weight_bytes(plan, drafting, num_rows) + num_rows * context * per_token)


def _weight_bytes(
    plan: EnginePlan, parameters: Sequence[ParameterSpec], num_tokens: int
) -> float:
    names = [each.name for each in parameters if each.kind != "table"]
    experts, met = plan.operations.get("num_experts", 0), 1.0
    if experts:
        met -= (1 - plan.operations["experts_per_token"] / experts) ** num_tokens
    routed = stored_tensors(plan.artifact, [name for name in names if "/experts/" in name])
    fixed = stored_tensors(plan.artifact, [name for name in names if "/experts/" not in name])
    return sum(each.bytes for each in fixed) + met * sum(each.bytes for each in routed)


def chunk_flops(plan: EnginePlan, num_tokens: int, context: int) -> int:
    """Operations of a chunk of a prompt: products (of experts, those that are chosen), the head
    for one token, and attention to what is before each token."""
    sizes, total = plan.operations, 0.0
    for spec in plan.parameters:
        if spec.kind != "projection" or spec.name.startswith(DRAFTING):
            continue
        rows = 1 if spec.shape[0] == sizes["vocab_size"] else num_tokens
        if "/experts/" in spec.name:
            rows *= sizes["experts_per_token"] / sizes["num_experts"]
        total += 2 * rows * prod(spec.shape)
    seen = context + num_tokens / 2
    attention = sizes["attention_flops_per_token"] * seen
    selected = sizes.get("selected_flops_per_token", 0) * min(seen, sizes.get("selected_tokens", 0))
    return round(total + num_tokens * (attention + selected))


def kv_bytes_per_token(plan: EnginePlan) -> int:
    """Of the model's own paged state."""
    own = [spec for spec in plan.states if not spec.name.startswith("mtp_")]
    return StateLayout(own, plan.kv, max_verify_rows=1).bytes_per_token
