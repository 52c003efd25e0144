"""All op contracts of the core by name."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.ops.causal_conv1d.contract import CONTRACT as CAUSAL_CONV1D
from ninfer_core.ops.contract import OpContract
from ninfer_core.ops.embedding.contract import CONTRACT as EMBEDDING
from ninfer_core.ops.gated_delta_rule.contract import CONTRACT as GATED_DELTA_RULE
from ninfer_core.ops.gated_rmsnorm.contract import CONTRACT as GATED_RMSNORM
from ninfer_core.ops.linear.contract import CONTRACT as LINEAR
from ninfer_core.ops.moe_mlp.contract import CONTRACT as MOE_MLP
from ninfer_core.ops.moe_route.contract import CONTRACT as MOE_ROUTE
from ninfer_core.ops.paged_attention.contract import CONTRACT as PAGED_ATTENTION
from ninfer_core.ops.rmsnorm.contract import CONTRACT as RMSNORM
from ninfer_core.ops.rope_kv_append.contract import CONTRACT as ROPE_KV_APPEND
from ninfer_core.ops.sigmoid_gate.contract import CONTRACT as SIGMOID_GATE
from ninfer_core.ops.swiglu.contract import CONTRACT as SWIGLU

CONTRACTS: Mapping[str, OpContract] = {
    contract.name: contract
    for contract in (
        CAUSAL_CONV1D, EMBEDDING, GATED_DELTA_RULE, GATED_RMSNORM, LINEAR, MOE_MLP,
        MOE_ROUTE, PAGED_ATTENTION, RMSNORM, ROPE_KV_APPEND, SIGMOID_GATE, SWIGLU,
    )
}
