"""``sampling``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.sampling.random import Purpose
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.sampling.sampler import INVALID, draw
from ninfer_core.sampling.verify import Drafted, Judge, Verdict, match
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, power
from ninfer_triton_kernels.bindings.sample_tables import (
    MOST_CHOICES,
    RowTable,
    choices,
    draft_table,
    is_drawn,
)
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import drafts as draft_kernels
from ninfer_triton_kernels.kernels import sampling as kernels
from ninfer_triton_kernels.kernels.likeliest import likeliest

TILE, TILE_WARPS, ROW_WARPS = 512, 1, 4
"""Ids of a program, its warps, and those of one that has a whole row."""

WIDE_TILE, WIDE_WARPS = 2048, 4
"""Where the best is all that is sought; sums of masses depend on the size of tiles."""

def bind_sampling(request: KernelRequest) -> Judge:
    return DeviceJudge()


class DeviceJudge(Judge):
    """Draws and judges in a few launches, behind one copy of what is known of the rows to the
    device, and before one of tokens from it."""

    waits = False

    def is_prompt(self, row: SampleRow, vocab_size: int) -> bool:
        """See `Judge.is_prompt`."""
        return _is_own(row, vocab_size, False)

    def likeliest(
        self, logits: Tensor, token_ids: Tensor | None = None, *, out: Tensor | None = None,
        least: int = INVALID,
    ) -> Tensor:
        """See `Sampler.likeliest`; made where the logits are."""
        (count, size), device = logits.shape, logits.device
        tokens = torch.empty(count, dtype=torch.int64, device=device) if out is None else out
        num_tiles, tile = _tiles(size, WIDE_TILE)
        candidates = shared("candidates", count * num_tiles, torch.int64, device)
        arrivals = shared("row_arrivals", count, torch.int32, device)
        is_named = token_ids is not None
        likeliest[num_tiles, count](
            logits, logits.stride(0), token_ids if is_named else tokens, candidates, arrivals,
            tokens, size, num_tiles, least, is_named, tile, power(num_tiles),
            num_warps=WIDE_WARPS, **OVERLAPPED)
        return tokens

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """Tokens int64 ``[R]``, as the reference's."""
        if all(map(_is_plain, rows)):
            return self.likeliest(logits)
        return self._split(logits, rows, None)

    def probabilities(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """What `sample` draws from, fp64 ``[R, V]``."""
        shares = _zeros(logits)
        self._split(logits, rows, shares)
        return shares

    def propose(self, logits: Tensor, rows: Sequence[SampleRow]) -> tuple[Tensor, Tensor | None]:
        """See `Judge.propose`."""
        if all(row.params.temperature == 0 for row in rows):
            return self.sample(logits, rows), None
        shares = _zeros(logits)
        keyed = [evolve(row, purpose=Purpose.PROPOSAL) for row in rows]
        return self._split(logits, keyed, shares, by_id=True), shares

    def accept(self, tokens: Tensor, drafts: Tensor) -> Tensor:
        """See `Judge.accept`."""
        count, num_drafts = drafts.shape
        accepted = torch.empty(count, dtype=torch.int64, device=tokens.device)
        draft_kernels.accept_greedy[count,](
            tokens, tokens.stride(0), drafts, drafts.stride(0), accepted, num_drafts,
            power(num_drafts), num_warps=1, **OVERLAPPED)
        return accepted

    def verify(
        self, logits: Tensor, drafted: Sequence[Drafted], likeliest: Tensor | None = None
    ) -> list[Verdict]:
        """See `Judge.verify`; one copy of tokens to the host."""
        rows = [row for each in drafted for row in each.rows]
        if any(map(is_drawn, drafted)):
            target = _zeros(logits)
            tokens = self._split(logits, rows, target)
            _draw_again(tokens, logits, drafted)
            found = torch.cat((tokens, judge_drafts(target, drafted).flatten()))
        elif likeliest is not None and all(map(_is_plain, rows)):
            found = likeliest
        else:
            found = self._split(logits, rows, None, is_read=True)
        numbers: list[int] = found.tolist()
        self._rank(logits, rows, numbers)
        return _verdicts(drafted, numbers[: len(rows)], numbers[len(rows) :])

    def _rank(self, logits: Tensor, rows: Sequence[SampleRow], numbers: list[int]) -> None:
        """Draw what could not be drawn from few choices."""
        unranked = kernels.UNRANKED.value
        group = [i for i, number in enumerate(numbers[: len(rows)]) if number == unranked]
        if group:
            drawn = super().sample(logits[group], [rows[i] for i in group]).tolist()
            for i, token in zip(group, drawn, strict=True):
                numbers[i] = token

    def _split(
        self, logits: Tensor, rows: Sequence[SampleRow], shares: Tensor | None, *,
        by_id: bool = False, is_read: bool = False,
    ) -> Tensor:
        """Tokens, and probabilities into ``shares``: rows that are the reference's apart; with
        ``is_read``, `kernels.UNRANKED` for those of which it turns out on the device."""
        others = [i for i, row in enumerate(rows) if not _is_own(row, logits.shape[1], is_read)]
        if not others:
            return _draw(logits, rows, shares, by_id)
        own = [i for i in range(len(rows)) if i not in others]
        tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for group, choose in ((own, _draw), (others, self._leave)):
            if group:
                some = logits[group]
                spread = None if shares is None else _zeros(some)
                tokens[group] = choose(some, [rows[i] for i in group], spread, by_id)
                if shares is not None and spread is not None:
                    shares[group] = spread
        return tokens

    def _leave(
        self, logits: Tensor, rows: Sequence[SampleRow], shares: Tensor | None, by_id: bool
    ) -> Tensor:
        if shares is not None:
            shares.copy_(super().probabilities(logits, rows))
            if by_id:
                return draw(shares, rows).masked_fill_(~shares.any(-1), INVALID)
        return super().sample(logits, rows)


def _draw_again(tokens: Tensor, logits: Tensor, drafted: Sequence[Drafted]) -> None:
    """What was left to the reference for the probabilities of a row of which none are asked for:
    as without company."""
    owned = [(row, is_drawn(each)) for each in drafted for row in each.rows]
    group = [i for i, (row, drawn) in enumerate(owned)
             if not drawn and _is_own(row, logits.shape[1], True)
             and not _is_own(row, logits.shape[1], False)]
    if group:
        tokens[group] = _draw(logits[group], [owned[i][0] for i in group], None, False)


def _draw(
    logits: Tensor, rows: Sequence[SampleRow], shares: Tensor | None, by_id: bool
) -> Tensor:
    table = RowTable.of(rows, logits.shape[1], logits.device)
    return _choose(logits, table, shares, by_id=by_id)


def _choose(logits: Tensor, rows: RowTable, shares: Tensor | None, *, by_id: bool) -> Tensor:
    """Launch; ``by_id``: draw in the order of ids where there are few choices, not of ranks."""
    (count, size), device = logits.shape, logits.device
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    num_tiles, tile = _tiles(size)
    most = power(rows.most, 1)
    candidates = shared("candidates", count * num_tiles * most, torch.int64, device)
    changed, masses = logits, candidates.view(torch.float64)  # of their types, if not used
    if rows.is_touched:
        changed = shared("changed_logits", count * size, torch.float32, device)
    if rows.is_whole:
        masses = shared("token_masses", count * num_tiles, torch.float64, device)
    known = logits, logits.stride(0), rows.table, changed, candidates
    sizes = size, num_tiles
    blocks = most, power(num_tiles), tile
    by_tile: dict[str, Any] = {"num_warps": TILE_WARPS, **OVERLAPPED}
    by_row: dict[str, Any] = {"num_warps": ROW_WARPS, **OVERLAPPED}
    kernels.survey[num_tiles, count](*known, *sizes, most, tile, **by_tile)
    if rows.is_whole:
        kernels.weigh[num_tiles, count](*known, masses, *sizes, *blocks, **by_tile)
    given = tokens if shares is None else shares
    kernels.choose[count,](
        *known, masses, tokens, given, *sizes, shares is not None, by_id, *blocks, **by_row)
    if rows.is_whole and shares is not None:
        kernels.spread[num_tiles, count](*known, masses, shares, *sizes, *blocks, **by_tile)
    return tokens


def judge_drafts(target: Tensor, drafted: Sequence[Drafted]) -> Tensor:
    """Int64 ``[S, 2]`` of those whose drafts were drawn: how many are kept, and what follows.

    :param target: fp64 ``[R, V]``, probabilities of all rows.
    """
    table, _held = draft_table(drafted, target.device)
    (count, columns), size = table.shape, target.shape[1]
    num_tiles, tile = _tiles(size)
    verdicts = torch.empty(count, 2, dtype=torch.int64, device=target.device)
    masses = shared("residual_masses", 2 * count * num_tiles, torch.float64, target.device)
    sizes = size, num_tiles
    draft_kernels.weigh_residual[num_tiles, count](
        target, table, columns, masses, *sizes, tile, num_warps=TILE_WARPS, **OVERLAPPED)
    draft_kernels.draw_behind[count,](
        target, table, columns, masses, verdicts, *sizes, power(num_tiles), tile,
        num_warps=ROW_WARPS, **OVERLAPPED)
    return verdicts


def _tiles(size: int, tile: int = TILE) -> tuple[int, int]:
    """How many there are, and ids of each: fewer for the interpreter."""
    tile = min(tile, power(-(-size // 3))) if IS_INTERPRETED else tile
    return -(-size // tile), tile


def _zeros(logits: Tensor) -> Tensor:
    """Of probabilities."""
    return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)


def _verdicts(
    drafted: Sequence[Drafted], tokens: Sequence[int], drawn: Sequence[int]
) -> list[Verdict]:
    """Of all sequences: ``tokens`` of all rows, and pairs of those whose drafts were drawn."""
    verdicts, start, pairs = [], 0, zip(drawn[::2], drawn[1::2], strict=True)
    for each in drafted:
        own = tokens[start : start + len(each.rows)]
        verdicts.append(
            Verdict(*next(pairs)) if is_drawn(each) else match(each.drafts, own))
        start += len(each.rows)
    return verdicts


def _is_plain(row: SampleRow) -> bool:
    return row.params.temperature == 0 and row.is_free


def _is_own(row: SampleRow, vocab_size: int, is_read: bool) -> bool:
    count, is_whole = choices(row, vocab_size)
    return count <= MOST_CHOICES and (is_read or count == 1 or not is_whole)
