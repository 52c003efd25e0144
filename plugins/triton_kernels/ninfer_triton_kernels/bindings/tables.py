"""``embedding``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest, UnsupportedError
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.host import is_on_host, lock
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, power
from ninfer_triton_kernels.kernels.embedding import dense_rows, grouped_rows

Gather = Callable[[Tensor, Tensor], Tensor]


def bind_embedding(request: KernelRequest, weight: Weight) -> Gather:
    """A table in a layout that the kernels do not read is held in bf16, which is what they give.
    One in host memory stays there, and rows of it are read across the bus."""
    if on_host := is_on_host(weight):
        lock(weight)
    if weight.info.layout == "row_split_k128_v1":
        return _bind_grouped(weight)
    width, name = weight.info.shape[1], weight.info.format.name
    if has_scale := name == "fp8_e4m3fn_row_bf16":
        table, scales = weight.planes["codes"], weight.planes["scales"]
    elif name in ("bf16", "fp32"):
        table = scales = weight.planes["codes"]
    elif on_host:
        raise UnsupportedError(f"rows of {name} are not read from host memory")
    else:
        table = scales = weight.dense().to(torch.bfloat16)
    block = min(2048, power(width))

    def embedding(ids: Tensor, out: Tensor) -> Tensor:
        dense_rows[ids.shape[0], -(-width // block)](
            ids, table, scales, out, out.stride(0), width, has_scale, block,
            **OVERLAPPED,
        )
        return out

    return embedding


def _bind_grouped(weight: Weight) -> Gather:
    width, structure, planes = weight.info.shape[1], weight.info.format.structure, weight.planes
    assert structure is not None
    codes, scales = planes["codes"], planes["scales"]
    high, stored = planes.get("high", codes), scales.shape[1] * structure.group
    block = min(2048, power(width))

    def embedding(ids: Tensor, out: Tensor) -> Tensor:
        grouped_rows[ids.shape[0], -(-width // block)](
            ids, codes, high, scales, out, out.stride(0), width, stored, structure.bits,
            structure.group, block, **OVERLAPPED,
        )
        return out

    return embedding
