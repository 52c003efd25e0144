"""What this distribution registers. Imports no torch."""

from __future__ import annotations

import ninfer_ops
from ninfer_core.api import KernelSpec, OpContract, hookimpl
from ninfer_core.ops.contracts import contracts_in

NINFER_API = (1, 0)
_CONTRACTS = contracts_in(ninfer_ops)


@hookimpl
def ninfer_op_contracts() -> list[OpContract]:
    return _CONTRACTS


@hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    return [contract.reference_kernel() for contract in _CONTRACTS]
