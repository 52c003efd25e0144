"""``moe_mlp`` and ``shared_moe_mlp``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_triton_kernels.bindings.banks import Bank, Banks, ExpertTile
from ninfer_triton_kernels.bindings.expert_groups import ExpertGroups, combine_pairs
from ninfer_triton_kernels.bindings.launching import OVERLAPPED, limit_of, num_processors, power
from ninfer_triton_kernels.bindings.matrices import FEW_TOKENS, bind_linear, bind_swiglu
from ninfer_triton_kernels.bindings.rows import bind_sigmoid_gate
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import experts
from ninfer_triton_kernels.kernels.products import COLUMNS


@frozen
class Tiles:
    """For experts of each token and the one that all have in common: where there are many programs,
    and where a processor has ``most`` or fewer of them, so that what each has in flight decides.

    Warps and blocks are the same in both, because the order of sums depends on them.
    """

    many: tuple[ExpertTile, ExpertTile]
    few: tuple[ExpertTile, ExpertTile]
    most: int

    def of(
        self, rows: int, lines: int, device: torch.device
    ) -> tuple[ExpertTile, ExpertTile]:
        """For ``lines`` of programs, each of all ``rows`` of a matrix."""
        programs = -(-rows // self.many[0].rows) * lines
        return self.few if programs <= self.most * num_processors(device) else self.many


WIDE = Tiles(
    (ExpertTile(32, 4, 4, 2), ExpertTile(32, 4, 4, 2)),
    (ExpertTile(32, 4, 4, 4), ExpertTile(32, 4, 4, 8)), most=4)
NARROW = Tiles(
    (ExpertTile(32, 4, 4, 2), ExpertTile(32, 4, 4, 2)),
    (ExpertTile(16, 4, 4, 2), ExpertTile(16, 4, 4, 4)), most=6)
"""Of gate_up and of down."""

COMPANY = 256
"""Fewest pairs of several tokens that kernels are compiled for: those of most steps."""


def bind_moe_mlp(request: KernelRequest, gate_up: Weight, down: Weight) -> Callable[..., Tensor]:
    own = Bank.of(gate_up), Bank.of(down)
    mlp, prompts = _ExpertMlp(request, own, None), ExpertGroups(request, own)

    def moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        if x.shape[0] <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, None, out, residual)
        return prompts(x, ids, weights, out, residual)

    return moe_mlp


def bind_shared_moe_mlp(
    request: KernelRequest, gate_up: Weight, down: Weight, shared_gate_up: Weight,
    shared_down: Weight,
) -> Callable[..., Tensor]:
    """Few tokens take the shared expert beside their own, many as a product of all."""
    own, common = (
        (Bank.of(wide), Bank.of(narrow))
        for wide, narrow in ((gate_up, down), (shared_gate_up, shared_down)))
    mlp, prompts = _ExpertMlp(request, own, common), ExpertGroups(request, own)
    product, project = bind_swiglu(request, shared_gate_up), bind_linear(request, shared_down, None)
    scale, inner = bind_sigmoid_gate(request), shared_down.info.shape[1]

    def shared_moe_mlp(
        x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        count = x.shape[0]
        if count <= FEW_TOKENS:
            return mlp.by_token(x, ids, weights, score, out, residual)
        prompts(x, ids, weights, out, residual)
        memory = shared("shared_product", request.max_tokens * inner, torch.bfloat16, x.device)
        gated = product(x, memory[: count * inner].view(count, inner))
        return project(gated if score is None else scale(gated, score, gated), out, out)

    return shared_moe_mlp


class _ExpertMlp:
    """:param common: of the expert that all tokens share, if there is one."""

    def __init__(self, request: KernelRequest, own: Banks, common: Banks | None) -> None:
        self._top_k = request.sizes["top_k"]
        self._own, self._common = own, own if common is None else common
        self._has_common, self._limit = common is not None, limit_of(request)

    def by_token(
        self, x: Tensor, ids: Tensor, weights: Tensor, score: Tensor | None, out: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """``out``; ``score`` is that of the common expert."""
        companies = self._companies(ids)
        hidden = self._gates(x, ids, companies)
        parts = self._sums(hidden, ids, companies, weights, score, out, residual)
        if x.shape[0] > 1:
            combine_pairs(parts, weights, out, residual, score, has_common=self._has_common)
        return out

    def _gates(self, x: Tensor, ids: Tensor, companies: Tensor) -> tuple[Tensor, Tensor]:
        """``silu(gate x) * up x`` of each pair, and of each token for the common expert."""
        (count, width), top_k = x.shape, self._top_k
        (wide, narrow), (common_wide, common_narrow) = self._own, self._common
        hidden = self._memory(x, "hidden", top_k * narrow.depth, torch.bfloat16)
        common = self._memory(x, "common", common_narrow.depth, torch.bfloat16)
        most = 2 * max(narrow.depth, common_narrow.depth * self._has_common)
        lines = self._lines(count)
        mine, its = WIDE.of(most, lines, x.device)
        sizes, common_sizes = wide.sizes(mine), common_wide.sizes(its)
        experts.gate_up_of_pairs[-(-most // sizes[1]), lines](
            x, ids, companies, hidden, *wide.tensors, common, *common_wide.tensors, count,
            narrow.depth, common_narrow.depth, x.stride(0), *wide.kinds, *common_wide.kinds,
            self._has_common, self._limit, top_k, count == 1, width, *sizes, *common_sizes,
            num_warps=mine.warps, **OVERLAPPED,
        )
        return hidden, common

    def _sums(
        self, hidden: tuple[Tensor, Tensor], ids: Tensor, companies: Tensor, weights: Tensor,
        score: Tensor | None, out: Tensor, residual: Tensor | None,
    ) -> Tensor:
        """Results of each pair, and of each token from the common expert; of one token they are
        summed up to ``out``."""
        (count, width), top_k, narrow, common = out.shape, self._top_k, *(
            narrow for _, narrow in (self._own, self._common))
        parts = self._memory(out, "sums", (top_k + 1) * width, torch.float32)
        lines = self._lines(count)
        mine, its = NARROW.of(width, lines, out.device)
        sizes, common_sizes = narrow.sizes(mine), common.sizes(its)
        tiles = -(-width // sizes[1])
        arrivals = shared("experts_arrivals", tiles, torch.int32, out.device)
        rest, given = out if residual is None else residual, out if score is None else score
        experts.down_of_pairs[tiles, lines](
            hidden[0], ids, companies, parts, *narrow.tensors, hidden[1], *common.tensors, weights,
            given, rest, out, arrivals, count, width, given.stride(0), rest.stride(0),
            out.stride(0), *narrow.kinds, *common.kinds, self._has_common, top_k, count == 1,
            narrow.depth, *sizes, common.depth, *common_sizes, score is not None,
            residual is not None, num_warps=mine.warps, **OVERLAPPED,
        )
        return parts

    def _lines(self, count: int) -> int:
        """Programs for each tile: of pairs, and of the common expert's tokens."""
        return count * self._top_k + -(-count // COLUMNS.value) * self._has_common

    def _companies(self, ids: Tensor) -> Tensor:
        """Of the pairs of several tokens; of one they are alone."""
        pairs = ids.numel()
        memory = shared("experts_companies", FEW_TOKENS * self._top_k * COLUMNS.value, torch.int32,
                        ids.device)
        if ids.shape[0] > 1:
            experts.find_companies[pairs,](
                ids, memory, pairs, power(pairs, COMPANY), num_warps=1, **OVERLAPPED)
        return memory

    def _memory(self, x: Tensor, name: str, width: int, dtype: torch.dtype) -> Tensor:
        return shared(f"experts_{name}", FEW_TOKENS * width, dtype, x.device)
