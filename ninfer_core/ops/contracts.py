"""All op contracts of the core by name."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core.ops.contract import OpContract
from ninfer_core.ops.embedding.contract import CONTRACT as EMBEDDING
from ninfer_core.ops.linear.contract import CONTRACT as LINEAR
from ninfer_core.ops.paged_attention.contract import CONTRACT as PAGED_ATTENTION
from ninfer_core.ops.rmsnorm.contract import CONTRACT as RMSNORM
from ninfer_core.ops.rope_kv_append.contract import CONTRACT as ROPE_KV_APPEND
from ninfer_core.ops.swiglu.contract import CONTRACT as SWIGLU

CONTRACTS: Mapping[str, OpContract] = {
    contract.name: contract
    for contract in (EMBEDDING, LINEAR, PAGED_ATTENTION, RMSNORM, ROPE_KV_APPEND, SWIGLU)
}
