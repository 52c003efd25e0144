"""The gated MLPs of experts of a prompt's tokens."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_triton_kernels.bindings.banks import Bank, Banks
from ninfer_triton_kernels.bindings.launching import (
    IS_INTERPRETED,
    OVERLAPPED,
    capability,
    limit_of,
    num_processors,
    power,
)
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import expert_groups as kernels
from ninfer_triton_kernels.kernels import experts, hopper_experts
from ninfer_triton_kernels.kernels.warp_groups import WARPS

FEWEST_PAIRS = 16
"""Pairs of an expert that one program takes, at least."""

MOST_PAIRS, OTHER_MOST_PAIRS = {90: 128}, 64
"""At most, by capability; where sums of products lie beside both operands in registers, fewer."""

COLUMNS = 64
"""Columns of activations are stored as a multiple of these."""

HOPPER = 90
"""The capability that has `kernels.hopper_experts`."""

SORTED = 512
"""Pairs that a program counts, and places."""

CUT = 32
"""Groups that a program finds."""


@frozen
class GroupTile:
    """Rows of an expert's matrix that a program takes, and stages of its loads."""

    rows: int
    warps: int
    stages: int


WIDE_TILE, NARROW_TILE = GroupTile(128, 4, 2), GroupTile(128, 4, 2)
"""Of gate_up and of down."""


@frozen(eq=False)
class Groups:
    """Pairs by expert, and a table of groups of at most ``size``: as many as there could be, so
    that no number has to come back from the device."""

    order: Tensor
    table: Tensor
    size: int


class ExpertGroups:
    """Pairs are sorted by expert, and each group of them is multiplied with its expert's matrix,
    decoded once for all.

    :param own: gate_up and down of all experts.
    """

    def __init__(self, request: KernelRequest, own: Banks) -> None:
        self._experts, self._top_k = request.sizes["num_experts"], request.sizes["top_k"]
        self._own, self._limit = own, limit_of(request)
        self._max_tokens = request.max_tokens
        self._has_units = all(map(_has_units, own))

    def __call__(
        self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None
    ) -> Tensor:
        """As the op ``moe_mlp``; other bits than token by token, because sums are of other
        columns."""
        width, card = x.shape[1], capability(x.device)
        by_units = self._has_units and card == HOPPER
        most = hopper_experts.PAIRS.value if by_units else pairs_of_group(
            ids.numel(), self._experts, card)
        groups, arranged = self._groups(ids, most, evenly=by_units), self._arranged(x)
        hidden = self._memory(
            "expert_hidden", self._top_k * _padded(self._own[1].depth), x.device)
        parts = self._memory("expert_parts", self._top_k * width, x.device)
        if by_units:
            self._multiply_units(arranged, groups, hidden, self._own[0], self._own[1].depth)
            self._multiply_units(hidden, groups, parts, self._own[1], width, gated=False)
        else:
            self._gate_up(arranged, groups, hidden)
            self._down(hidden, groups, parts, width)
        combine_pairs(parts, weights, out, residual, None, has_common=False)
        return out

    def _arranged(self, x: Tensor) -> Tensor:
        """Activations as gate_up's kernel takes them."""
        (count, width), padded = x.shape, _padded(x.shape[1])
        arranged = self._memory("expert_inputs", padded, x.device)
        block = min(2048, power(padded))
        kernels.arrange_columns[count, -(-padded // block)](
            x, arranged, width, padded, x.stride(0), _is_tiled(self._own[0]), block, **OVERLAPPED)
        return arranged

    def _groups(self, ids: Tensor, size: int, *, evenly: bool) -> Groups:
        pairs, most, every = ids.numel(), self._max_tokens * self._top_k, power(self._experts)
        blocks, count = -(-pairs // SORTED), pairs // size + self._experts
        room = 3 * (most // FEWEST_PAIRS + self._experts)
        counts = shared("expert_counts", every * kernels.SPREAD.value, torch.int32, ids.device)
        arrivals = shared("expert_arrivals", 1, torch.int32, ids.device)
        ranks, order = (
            shared(f"expert_{name}", most, torch.int32, ids.device) for name in ("ranks", "order"))
        table = shared("expert_groups", room, torch.int32, ids.device)[: 3 * count].view(3, count)
        kernels.count_pairs[blocks,](ids, counts, ranks, pairs, SORTED, **OVERLAPPED)
        kernels.place_pairs[blocks + -(-count // CUT),](
            ids, counts, ranks, order, table, arrivals, pairs, blocks, count, size, evenly, every,
            SORTED, CUT, num_warps=8, **OVERLAPPED,
        )
        return Groups(order, table, size)

    def _gate_up(self, x: Tensor, groups: Groups, hidden: Tensor) -> None:
        """``silu(gate x) * up x`` of each place in the order."""
        (wide, narrow), size = self._own, groups.size
        rows, padded = _rows(WIDE_TILE), _padded(narrow.depth)
        kernels.gate_up_of_group[-(-2 * padded // rows), groups.table.shape[1]](
            x, groups.order, groups.table, hidden, *wide.tensors, narrow.depth, wide.depth,
            _padded(wide.depth), padded, *wide.kinds, self._limit, self._top_k, _is_tiled(narrow),
            size, _few(size), rows, WIDE_TILE.stages, num_warps=WIDE_TILE.warps, **OVERLAPPED,
        )

    def _down(self, hidden: Tensor, groups: Groups, parts: Tensor, width: int) -> None:
        """The product of each place, by pair."""
        narrow, size, rows = self._own[1], groups.size, _rows(NARROW_TILE)
        kernels.down_of_group[-(-width // rows), groups.table.shape[1]](
            hidden, groups.order, groups.table, parts, *narrow.tensors, width, narrow.depth,
            _padded(narrow.depth), *narrow.kinds, size, _few(size), rows, NARROW_TILE.stages,
            num_warps=NARROW_TILE.warps, **OVERLAPPED,
        )

    def _multiply_units(
        self, x: Tensor, groups: Groups, out: Tensor, bank: Bank, width: int, *,
        gated: bool = True,
    ) -> None:
        """gate_up or down, in units of `kernels.hopper_experts`."""
        (bits, offset, group, _), count = bank.kinds, groups.table.shape[1]
        codes, high, scales, _, divisor = bank.tensors
        row_blocks = -(-width * (2 if gated else 1) // (2 * hopper_experts.ROWS.value))
        units = count * row_blocks
        hopper_experts.multiply_groups[min(units, num_processors(x.device)),](
            x, groups.order, groups.table, out, codes, high, scales, divisor, units, row_blocks,
            count, bank.depth // COLUMNS, width, bank.depth, bits, offset, group, gated,
            self._limit, self._top_k if gated else 0,
            num_warps=WARPS.value, **OVERLAPPED,
        )

    def _memory(self, name: str, width: int, device: torch.device) -> Tensor:
        return shared(name, self._max_tokens * width, torch.bfloat16, device)


def combine_pairs(
    parts: Tensor, weights: Tensor, out: Tensor, residual: Tensor | None, score: Tensor | None,
    *, has_common: bool,
) -> None:
    """``out`` of parts ``[T * top_k, width]``, behind which are ``[T, width]`` of the common
    expert, if there is one, with its score."""
    (num_tokens, width), top_k = out.shape, weights.shape[1]
    rest, given = out if residual is None else residual, out if score is None else score
    experts.combine_pairs[num_tokens, -(-width // 1024)](
        parts, weights, given, rest, out, num_tokens * top_k, width, given.stride(0),
        rest.stride(0), out.stride(0), has_common, score is not None, residual is not None, top_k,
        1024, **OVERLAPPED,
    )


def pairs_of_group(pairs: int, num_experts: int, capability: int) -> int:
    """Most pairs of a group: as many as an expert has in the mean, so that most experts are one
    group and few of another, if these are not too many for a program."""
    most = MOST_PAIRS.get(capability, OTHER_MOST_PAIRS)
    return min(most, power(pairs // num_experts, FEWEST_PAIRS))


def _few(size: int) -> int:
    """Pairs of a group that take less than a whole one: what exceeds whole groups of an expert."""
    return max(FEWEST_PAIRS, size // 4)


def _padded(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS


def _rows(tile: GroupTile) -> int:
    return 64 if IS_INTERPRETED else tile.rows


def _is_tiled(bank: Bank) -> bool:
    return bank.kinds[0] != 16


def _has_units(bank: Bank) -> bool:
    """Whether `kernels.hopper_experts` takes these weights: 4 to 6 bits by blocks of 64 columns."""
    bits, _, group, has_minimum = bank.kinds
    return bits < 8 and group in (16, 64) and not has_minimum and bank.depth % COLUMNS == 0
