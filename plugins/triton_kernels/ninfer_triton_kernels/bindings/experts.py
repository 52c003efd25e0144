"""``moe_route`` and ``moe_mlp``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.bindings.stored import DENSE_COLUMNS, DenseMatrix, stored_matrix
from ninfer_triton_kernels.kernels import experts
from ninfer_triton_kernels.kernels.moe_route import moe_route as route_kernel


@frozen
class ExpertTile:
    """What one program takes of an expert.

    :ivar rows: of its matrix. :ivar batch: blocks of columns at once; from two on, each is one
        warp's. :ivar stages: loads in flight.
    """

    rows: int
    warps: int
    batch: int
    stages: int = 3


PAIR_TILES = ExpertTile(64, 2, 4), ExpertTile(32, 1, 2)
"""Of gate_up and down, where each pair goes by itself; the same for every number of tokens, because
the order of sums depends on them."""

GROUP_TILES = ExpertTile(128, 8, 1), ExpertTile(128, 8, 1)
"""Where pairs go by their experts."""

GROUP_PAIRS = 16, 64
"""Fewest and most pairs of an expert that one program takes."""


def bind_moe_route(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    num_experts, top_k = request.sizes["num_experts"], request.sizes["top_k"]

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        route_kernel[logits.shape[0],](
            logits, ids, weights, logits.stride(0), num_experts, top_k, power(top_k, 1),
            power(num_experts), num_warps=1 if num_experts <= 256 else 4, **OVERLAPPED,
        )

    return moe_route


def bind_moe_mlp(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    mlp = _ExpertMlp(request, _Bank.of(gate_up), _Bank.of(down))

    def moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        parts = (mlp.by_pair if x.shape[0] <= FEW_TOKENS else mlp.by_expert)(x, ids)
        width, rest = x.shape[1], out if residual is None else residual
        experts.combine_pairs[x.shape[0], -(-width // 1024)](
            parts, weights, rest, out, width, rest.stride(0), out.stride(0), residual is not None,
            ids.shape[1], 1024, **OVERLAPPED,
        )
        return out

    return moe_mlp


@frozen(eq=False)
class _Bank:
    """Tensors and kinds of a bank as `kernels.experts.expert_product` takes them.

    :ivar block: columns that a warp takes at once.
    """

    tensors: tuple[Tensor, ...]
    kinds: tuple[Any, ...]
    depth: int
    block: int

    @classmethod
    def of(cls, weight: Weight) -> _Bank:
        matrix, depth = stored_matrix(weight), weight.info.shape[-1]
        if isinstance(matrix, DenseMatrix):
            return cls((matrix.codes,) * 5, (16, 0, 0, False), depth, DENSE_COLUMNS)
        stored = matrix.stored
        optional = (stored.high, stored.scales, stored.minimums, stored.divisor)
        tensors = (stored.codes, *(stored.codes if each is None else each for each in optional))
        kinds = (matrix.bits, matrix.offset, matrix.group, stored.minimums is not None)
        return cls(tensors, kinds, depth, matrix.block)

    def sizes(self, tile: ExpertTile) -> tuple[bool, int, int, int]:
        """Whether columns are whole steps; rows, blocks of columns, and loads of a program."""
        rows = 64 if IS_INTERPRETED else tile.rows
        return self.depth % (tile.batch * self.block) == 0, rows, tile.batch, tile.stages


class _ExpertMlp:
    def __init__(self, request: KernelRequest, wide: _Bank, narrow: _Bank) -> None:
        self._experts, self._top_k = request.sizes["num_experts"], request.sizes["top_k"]
        self._wide, self._narrow, self._inner = wide, narrow, narrow.depth
        self._max_pairs = request.max_tokens * self._top_k

    def by_pair(self, x: Tensor, ids: Tensor) -> Tensor:
        """fp32 ``[pairs, H]``: what each expert of each token gives."""
        (num_tokens, width), wide, narrow = x.shape, self._wide, self._narrow
        hidden, parts, (first, second) = self._hidden(x), self._parts(x), PAIR_TILES
        pairs = num_tokens * self._top_k
        sizes = wide.sizes(first)
        experts.gate_up_of_pair[-(-2 * self._inner // sizes[1]), pairs](
            x, ids, hidden, *wide.tensors, self._inner, width, x.stride(0), *wide.kinds,
            self._top_k, *sizes, num_warps=first.warps, **OVERLAPPED,
        )
        sizes = narrow.sizes(second)
        experts.down_of_pair[-(-width // sizes[1]), pairs](
            hidden, ids, parts, *narrow.tensors, width, self._inner, *narrow.kinds, *sizes,
            num_warps=second.warps, **OVERLAPPED,
        )
        return parts

    def by_expert(self, x: Tensor, ids: Tensor) -> Tensor:
        """As `by_pair`; other bits, because steps are of other columns."""
        width, wide, narrow = x.shape[1], self._wide, self._narrow
        hidden, parts, (first, second) = self._hidden(x), self._parts(x), GROUP_TILES
        least, most = GROUP_PAIRS
        size = min(most, power(ids.numel() // self._experts, least))
        groups = self._groups(ids, size)
        count, sizes = groups[1].shape[0], wide.sizes(first)
        experts.gate_up_of_group[-(-2 * self._inner // sizes[1]), count](
            x, *groups, hidden, *wide.tensors, self._inner, width, x.stride(0), *wide.kinds,
            self._top_k, size, *sizes, num_warps=first.warps, **OVERLAPPED,
        )
        sizes = narrow.sizes(second)
        experts.down_of_group[-(-width // sizes[1]), count](
            hidden, *groups, parts, *narrow.tensors, width, self._inner, *narrow.kinds, size,
            *sizes, num_warps=second.warps, **OVERLAPPED,
        )
        return parts

    def _hidden(self, x: Tensor) -> Tensor:
        return shared("expert_hidden", self._max_pairs * self._inner, torch.bfloat16, x.device)

    def _parts(self, x: Tensor) -> Tensor:
        return shared("expert_parts", self._max_pairs * x.shape[1], torch.float32, x.device)

    def _groups(self, ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs sorted by expert, and for each group of at most ``size``: its expert, and where in
        the order it begins and ends; as many groups as there could be, so that no number has to
        come back from the device."""
        flat = ids.flatten()
        sorted_ids, order = flat.sort(stable=True)
        every = torch.arange(self._experts, device=ids.device, dtype=ids.dtype)
        ends = torch.searchsorted(sorted_ids, every, right=True)
        counts = ends.diff(prepend=ends.new_zeros(1))
        last_groups = ((counts + size - 1) // size).cumsum(0)
        most = flat.numel() // size + self._experts
        group = torch.arange(most, device=ids.device)
        owner = torch.searchsorted(last_groups, group, right=True).clamp_(max=self._experts - 1)
        begin_group = torch.where(owner > 0, last_groups[owner - 1], 0)
        begin = ends[owner] - counts[owner] + (group - begin_group) * size
        end = torch.minimum(begin + size, ends[owner])
        return order.int(), owner.int(), torch.stack((begin, end)).int()
