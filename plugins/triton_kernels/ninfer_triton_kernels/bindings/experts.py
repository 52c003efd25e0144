"""``moe_route``, ``moe_mlp`` and ``shared_moe_mlp``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, limit_of, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, bind_linear, bind_swiglu
from ninfer_triton_kernels.bindings.rows import bind_sigmoid_gate
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.bindings.stored import DENSE_COLUMNS, DenseMatrix, stored_matrix
from ninfer_triton_kernels.kernels import experts
from ninfer_triton_kernels.kernels import moe_route as routes
from ninfer_triton_kernels.kernels.products import COLUMNS


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


PAIR_TILE, COMMON_TILE = ExpertTile(32, 4, 4, 2), ExpertTile(32, 4, 4, 2)
"""Of gate_up, where each token goes by itself, and of the expert that all have in common, in the
same launch; the same for every number of tokens, because the order of sums depends on them."""

AHEAD_TILES = ExpertTile(32, 4, 4, 4), ExpertTile(32, 4, 4, 4)
"""The same with twice the loads in flight, and room left for the programs of down beside them."""

DOWN_ROWS, DOWN_WARPS = 16, 4
FETCHED = 1 << 14
"""Of down: rows and warps of a program, and bytes of codes that it fetches at once; all columns of
one expert if they are more."""

GROUP_TILES = ExpertTile(32, 4, 4, 1), ExpertTile(32, 4, 4, 1)
"""Where pairs go by their experts."""

GROUP_PAIRS = 16, 32
"""Fewest and most pairs of an expert that one program takes."""


def bind_moe_route(
    request: KernelRequest, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    num_experts, top_k = request.sizes["num_experts"], request.sizes["top_k"]
    if request.sizes.get("scoring", "softmax") == "sigmoid":
        return _by_sigmoids(num_experts, top_k, request.sizes.get("scale", 1.0), bias)

    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        routes.moe_route[logits.shape[0],](
            logits, ids, weights, logits.stride(0), num_experts, top_k, power(top_k, 1),
            power(num_experts), num_warps=1 if num_experts <= 256 else 4, **OVERLAPPED,
        )

    return moe_route


def _by_sigmoids(
    num_experts: int, top_k: int, scale: float, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor], None]:
    def moe_route(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
        routes.sigmoid_route[logits.shape[0],](
            logits, bias, ids, weights, logits.stride(0), num_experts, scale, top_k,
            power(top_k, 1), power(num_experts), num_warps=1 if num_experts <= 256 else 4,
            **OVERLAPPED,
        )

    return moe_route


def bind_moe_mlp(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    mlp = _ExpertMlp(request, (_Bank.of(gate_up), _Bank.of(down)), None)

    def moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        if x.shape[0] <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, None, out, residual)
        return mlp.by_expert(x, ids, weights, out, residual)

    return moe_mlp


def bind_shared_moe_mlp(
    request: KernelRequest, gate_up: Weight, down: Weight, shared_gate_up: Weight,
    shared_down: Weight, *, ahead: bool = False,
) -> Callable[..., Tensor]:
    """Few tokens take the shared expert beside their own, many as a product of all.

    :param ahead: with `AHEAD_TILES`, and weights of the down projections asked for while gates and
        up projections run; the bits are the same.
    """
    banks = [_Bank.of(weight) for weight in (gate_up, down, shared_gate_up, shared_down)]
    mlp = _ExpertMlp(request, (banks[0], banks[1]), (banks[2], banks[3]), ahead=ahead)
    product, project = bind_swiglu(request, shared_gate_up), bind_linear(request, shared_down, None)
    scale, inner = bind_sigmoid_gate(request), shared_down.info.shape[1]

    def shared_moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        count = x.shape[0]
        if count <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, score, out, residual)
        mlp.by_expert(x, ids, weights, out, residual)
        memory = shared("shared_product", request.max_tokens * inner, torch.bfloat16, x.device)
        gated = product(x, memory[: count * inner].view(count, inner))
        return project(gated if score is None else scale(gated, score, gated), out, out)

    return shared_moe_mlp


bind_shared_moe_mlp_ahead = partial(bind_shared_moe_mlp, ahead=True)


@frozen(eq=False)
class _Bank:
    """Tensors and kinds of a bank as `kernels.stored.stored_product` takes them.

    :ivar block: columns that a warp takes at once.
    """

    tensors: tuple[Tensor, ...]
    kinds: tuple[Any, ...]
    depth: int
    block: int

    @classmethod
    def of(cls, weight: Weight) -> _Bank:
        matrix, depth = stored_matrix(weight), weight.info.shape[-1]
        block = DENSE_COLUMNS if isinstance(matrix, DenseMatrix) else matrix.block
        return cls(matrix.tensors, matrix.kinds, depth, block)

    @property
    def few(self) -> tuple[Tensor, ...]:
        """The tensors without minimums."""
        codes, high, scales, _, divisor = self.tensors
        return codes, high, scales, divisor

    def fetched(self, top_k: int) -> tuple[int, int, bool]:
        """Experts whose columns are fetched at once, blocks of columns of each, and whether these
        are whole."""
        blocks = power(-(-self.depth // self.block), 1)
        bits = self.kinds[0] if self.kinds[0] >= 8 else 4  # those above four lie elsewhere
        nbytes = DOWN_ROWS * self.block * bits // 8
        most = max(1, FETCHED // (blocks * nbytes))
        return min(most, power(top_k, 1)), blocks, self.depth == blocks * self.block

    def sizes(self, tile: ExpertTile) -> tuple[bool, int, int, int]:
        """Whether columns are whole steps; rows, blocks of columns, and loads of a program."""
        rows = 64 if IS_INTERPRETED else tile.rows
        return self.depth % (tile.batch * self.block) == 0, rows, tile.batch, tile.stages


_Banks = tuple[_Bank, _Bank]
"""Gate_up and down."""


class _ExpertMlp:
    """:param common: of the expert that all tokens share, if there is one."""

    def __init__(
        self, request: KernelRequest, own: _Banks, common: _Banks | None, *, ahead: bool = False
    ) -> None:
        self._experts, self._top_k = request.sizes["num_experts"], request.sizes["top_k"]
        self._own, self._common = own, own if common is None else common
        self._has_common, self._max_tokens = common is not None, request.max_tokens
        self._limit, self._ahead = limit_of(request), ahead
        self._tiles = AHEAD_TILES if ahead else (PAIR_TILE, COMMON_TILE)

    def by_token(
        self, x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """``out``; ``score`` is that of the common expert."""
        (count, width), top_k = x.shape, self._top_k
        (wide, narrow), (common_wide, common_narrow) = self._own, self._common
        pairs, groups = count * top_k, -(-count // COLUMNS.value) * self._has_common
        hidden = self._hidden(x, "hidden", top_k * narrow.depth)
        common = self._hidden(x, "common", common_narrow.depth) if groups else hidden
        first, second = self._tiles
        sizes, common_sizes = wide.sizes(first), common_wide.sizes(second)
        most = max(narrow.depth / sizes[1], common_narrow.depth / common_sizes[1])
        experts.gate_up_of_pairs[ceil(2 * most), pairs + groups](
            x, ids, hidden, *wide.tensors, common, *common_wide.tensors, count, narrow.depth,
            common_narrow.depth, x.stride(0), *wide.kinds, *common_wide.kinds, self._has_common,
            self._limit, top_k, width, *sizes, *common_sizes, self._ahead, num_warps=first.warps,
            **OVERLAPPED,
        )
        rest, given = out if residual is None else residual, x if score is None else score
        ranks, blocks, even = narrow.fetched(top_k)
        _, common_blocks, common_even = common_narrow.fetched(1)
        rows = 64 if IS_INTERPRETED else DOWN_ROWS
        experts.down_of_token[-(-width // rows), count](
            hidden, ids, weights, *narrow.few, common, given, *common_narrow.few, rest, out, width,
            given.stride(0), rest.stride(0), out.stride(0), *narrow.kinds[:3],
            *common_narrow.kinds[:3], self._has_common, score is not None, residual is not None,
            top_k, narrow.depth, common_narrow.depth, even, common_even, ranks, rows, blocks,
            common_blocks, num_warps=DOWN_WARPS, **OVERLAPPED,
        )
        return out

    def by_expert(
        self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None
    ) -> Tensor:
        """As `by_token` without the common expert; other bits, because steps are of other
        columns."""
        (num_tokens, width), (wide, narrow) = x.shape, self._own
        hidden, (first, second) = self._hidden(x, "hidden", self._top_k * narrow.depth), GROUP_TILES
        least, most = GROUP_PAIRS
        size = min(most, power(ids.numel() // self._experts, least))
        groups = self._groups(ids, size)
        count, sizes = groups[1].shape[0], wide.sizes(first)
        experts.gate_up_of_group[-(-2 * narrow.depth // sizes[1]), count](
            x, *groups, hidden, *wide.tensors, narrow.depth, width, x.stride(0), *wide.kinds,
            self._limit, self._top_k, size, *sizes, num_warps=first.warps, **OVERLAPPED,
        )
        sizes = narrow.sizes(second)
        pairs = self._max_tokens * self._top_k
        parts = shared("expert_parts", pairs * width, torch.float32, x.device)
        experts.down_of_group[-(-width // sizes[1]), count](
            hidden, *groups, parts, *narrow.tensors, width, narrow.depth, *narrow.kinds, size,
            *sizes, num_warps=second.warps, **OVERLAPPED,
        )
        rest = out if residual is None else residual
        experts.combine_pairs[num_tokens, -(-width // 1024)](
            parts, weights, rest, out, width, rest.stride(0), out.stride(0), residual is not None,
            self._top_k, 1024, **OVERLAPPED,
        )
        return out

    def _hidden(self, x: Tensor, name: str, width: int) -> Tensor:
        return shared(f"expert_{name}", self._max_tokens * width, torch.bfloat16, x.device)

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
