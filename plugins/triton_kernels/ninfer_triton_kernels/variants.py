"""Products in other tiles than the table's, for ``ninfer bench tune``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import astuple, evolve
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import limit_of, num_processors
from ninfer_triton_kernels.bindings.stored import stored_kind, stored_matrix
from ninfer_triton_kernels.tuning import Tile, candidate_tiles


def variants(
    request: KernelRequest,
) -> list[tuple[str, dict[str, Any], Callable[..., Callable[..., Tensor]]]]:
    """Of ``linear`` and ``swiglu``, for the rows that they take at the pace of the weight."""
    [weight] = request.weights
    (rows, depth), kind = weight.shape, stored_kind(weight)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiles = candidate_tiles(kind, rows, depth, num_processors(torch.device(device)))
    return [
        (f"{request.capability}.{kind}",
         {"rows": rows, "depth": depth, "tile": [*astuple(tile)]}, partial(_bind, tile))
        for tile in tiles
    ]


def _bind(
    tile: Tile, request: KernelRequest, weight: Weight, bias: Tensor | None = None
) -> Callable[..., Tensor]:
    matrix = evolve(stored_matrix(weight), tile=tile)
    gated = limit_of(request) if request.op == "swiglu" else 0.0

    def product(x: Tensor, out: Tensor, residual: Tensor | None = None) -> Tensor:
        matrix.multiply(x, out, bias, residual, gated=gated)
        return out

    return product
