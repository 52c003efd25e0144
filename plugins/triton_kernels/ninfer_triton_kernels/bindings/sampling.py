"""``sampling``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import SampleRow, penalises
from ninfer_core.sampling.sampler import INVALID, draw
from ninfer_core.sampling.verify import Drafted, Judge, Verdict, match
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, power
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import drafts as draft_kernels
from ninfer_triton_kernels.kernels import sampling as kernels

TILE, TILE_WARPS, ROW_WARPS = 512, 1, 4
"""Ids of a program, its warps, and those of one that has a whole row."""

MOST_CHOICES = 64
"""Tokens that a row of top-k may choose from here; those with more, and those of top-p alone, are
the reference's."""

TINY = torch.finfo(torch.float32).tiny


def bind_sampling(request: KernelRequest) -> Judge:
    return DeviceJudge()


class DeviceJudge(Judge):
    """Draws and judges in a few launches, behind one copy of what is known of the rows to the
    device, and before one of tokens from it."""

    waits = False

    def likeliest(self, logits: Tensor) -> Tensor:
        """What `sample` draws greedily for rows that are free; made where the logits are."""
        return _choose(logits, None)

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """Tokens int64 ``[R]``, as the reference's."""
        if all(map(_is_plain, rows)):
            return _choose(logits, None)
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

    def verify(
        self, logits: Tensor, drafted: Sequence[Drafted], likeliest: Tensor | None = None
    ) -> list[Verdict]:
        """See `Judge.verify`; one copy of tokens to the host."""
        rows = [row for each in drafted for row in each.rows]
        if any(map(_is_drawn, drafted)):
            target = _zeros(logits)
            tokens = self._split(logits, rows, target)
            found = torch.cat((tokens, judge_drafts(target, drafted).flatten()))
        elif likeliest is not None and all(map(_is_plain, rows)):
            found = likeliest
        else:
            found = self.sample(logits, rows)
        numbers: list[int] = found.tolist()
        return _verdicts(drafted, numbers[: len(rows)], numbers[len(rows) :])

    def _split(
        self, logits: Tensor, rows: Sequence[SampleRow], shares: Tensor | None, *,
        by_id: bool = False,
    ) -> Tensor:
        """Tokens, and probabilities into ``shares``: rows that are the reference's apart."""
        others = [i for i, row in enumerate(rows) if not _is_own(row, logits.shape[1])]
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


def _draw(
    logits: Tensor, rows: Sequence[SampleRow], shares: Tensor | None, by_id: bool
) -> Tensor:
    table = _Rows.of(rows, logits.shape[1], logits.device)
    return _choose(logits, table, shares, by_id=by_id)


def _choose(
    logits: Tensor, rows: _Rows | None, shares: Tensor | None = None, *, by_id: bool = False
) -> Tensor:
    """Launch; without ``rows``, what is likeliest.

    :param by_id: draw in the order of ids where there are few choices, not of ranks.
    """
    (count, size), device = logits.shape, logits.device
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    num_tiles, tile = _tiles(size)
    most = 1 if rows is None else power(rows.most, 1)
    candidates = shared("candidates", count * num_tiles * most, torch.int64, device)
    is_touched, is_whole = (False, False) if rows is None else (rows.is_touched, rows.is_whole)
    changed = shared("changed_logits", count * size, torch.float32, device) if is_touched else (
        logits)
    masses = shared("token_masses", count * num_tiles, torch.float64, device) if is_whole else (
        candidates)
    table = candidates if rows is None else rows.table
    known = logits, logits.stride(0), table, changed, candidates
    sizes = size, num_tiles
    blocks = most, power(num_tiles), tile
    by_tile: dict[str, Any] = {"num_warps": TILE_WARPS, **OVERLAPPED}
    by_row: dict[str, Any] = {"num_warps": ROW_WARPS, **OVERLAPPED}
    kernels.survey[num_tiles, count](*known, *sizes, rows is None, most, tile, **by_tile)
    if is_whole:
        kernels.weigh[num_tiles, count](*known, masses, *sizes, *blocks, **by_tile)
    given = tokens if shares is None else shares
    kernels.choose[count,](
        *known, masses, tokens, given, *sizes, rows is None, shares is not None, by_id, *blocks,
        **by_row)
    if is_whole and shares is not None:
        kernels.spread[num_tiles, count](*known, masses, shares, *sizes, *blocks, **by_tile)
    return tokens


def judge_drafts(target: Tensor, drafted: Sequence[Drafted]) -> Tensor:
    """Int64 ``[S, 2]`` of those whose drafts were drawn: how many are kept, and what follows.

    :param target: fp64 ``[R, V]``, probabilities of all rows.
    """
    table, _held = _table_of(drafted, target.device)
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


def _tiles(size: int) -> tuple[int, int]:
    """How many there are, and ids of each."""
    tile = min(TILE, power(-(-size // 3))) if IS_INTERPRETED else TILE
    return -(-size // tile), tile


def _zeros(logits: Tensor) -> Tensor:
    """Of probabilities."""
    return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)


@frozen(eq=False)
class _Rows:
    """What is known of rows, on a device.

    :ivar most: tokens that a row chooses from. :ivar held: tensors whose addresses it has.
    """

    table: Tensor
    most: int
    is_whole: bool
    is_touched: bool
    held: Sequence[Tensor]

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> _Rows:
        pending = [row.pending if _is_penalised(row) else () for row in rows]
        begin = len(rows) * kernels.COLUMNS.value
        words = np.zeros(begin + sum(map(len, pending)), np.int64)
        table = words[:begin].reshape(len(rows), -1)
        numbers, held = table.view(np.float64), list[Tensor]()
        for row, before, line, floats in zip(rows, pending, table, numbers, strict=True):
            p, count = row.params, _num_choices(row, vocab_size)
            floats[: kernels.COUNT.value] = (
                max(p.temperature, TINY), p.top_p, p.min_p,
                uniform(p.seed, row.position, row.purpose) if p.temperature else 0.0,
                p.repetition_penalty, p.presence_penalty, p.frequency_penalty,
            )
            counts, seen, mask = _addresses(row, device, held)
            is_barred = row.fault is not None
            is_touched = is_barred or bool(counts or mask)
            line[kernels.COUNT.value :] = (
                count or 1, count == 0, is_touched, is_barred, counts, seen, mask, begin,
                len(before),
            )
            words[begin : begin + len(before)] = before
            begin += len(before)
        columns = table[:, kernels.COUNT.value : kernels.IS_BARRED.value]
        most, is_whole, is_touched = columns.max(0).tolist()
        return cls(_on(device, words), most, bool(is_whole), bool(is_touched), held)


def _addresses(
    row: SampleRow, device: torch.device, held: list[Tensor]
) -> tuple[int, int, int]:
    """Of counts, of what was seen, and of the mask on the device; 0 for none."""
    counts = seen = mask = 0
    if row.history is not None and penalises(row.params):
        counts, seen = row.history.counts.data_ptr(), row.history.seen.data_ptr()
    if row.mask is not None:
        held.append(_moved(device, row.mask))
        mask = held[-1].data_ptr()
    return counts, seen, mask


def _table_of(drafted: Sequence[Drafted], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """As `kernels.drafts` reads it, int64 ``[S, columns]``, and tensors whose addresses it has."""
    most = max(len(each.drafts) for each in drafted if _is_drawn(each))
    first, held, lines = 0, list[Tensor](), list[Sequence[int]]()
    for each in drafted:
        if _is_drawn(each) and each.proposals is not None:
            held.append(each.proposals.double())
            facts = first, len(each.drafts), held[-1].data_ptr(), held[-1].stride(0)
            *before, last = each.rows
            line = [*facts, _bits(last, Purpose.BONUS)]
            for row, token in zip(before, each.drafts, strict=True):
                line += [token, _bits(row, Purpose.ACCEPT), _bits(row, Purpose.CORRECTION)]
            line += [0] * (draft_kernels.DRAFT_COLUMNS.value * (most - len(before)))
            lines.append(line)
        first += len(each.rows)
    return _on(device, np.array(lines, np.int64)), held


def _bits(row: SampleRow, purpose: Purpose) -> int:
    """Of the FP64 number that a row draws for a purpose."""
    return int(np.float64(uniform(row.params.seed, row.position, purpose)).view(np.int64))


def _verdicts(
    drafted: Sequence[Drafted], tokens: Sequence[int], drawn: Sequence[int]
) -> list[Verdict]:
    """Of all sequences: ``tokens`` of all rows, and pairs of those whose drafts were drawn."""
    verdicts, start, pairs = [], 0, zip(drawn[::2], drawn[1::2], strict=True)
    for each in drafted:
        own = tokens[start : start + len(each.rows)]
        verdicts.append(
            Verdict(*next(pairs)) if _is_drawn(each) else match(each.drafts, own))
        start += len(each.rows)
    return verdicts


def _is_drawn(each: Drafted) -> bool:
    return each.proposals is not None and each.rows[0].params.temperature > 0


def _is_plain(row: SampleRow) -> bool:
    return row.params.temperature == 0 and row.is_free


def _is_penalised(row: SampleRow) -> bool:
    return row.history is not None and penalises(row.params)


def _num_choices(row: SampleRow, vocab_size: int) -> int:
    """0: any token."""
    return 1 if row.params.temperature == 0 else min(row.params.top_k, vocab_size)


def _is_own(row: SampleRow, vocab_size: int) -> bool:
    count = _num_choices(row, vocab_size)
    return 0 < count <= MOST_CHOICES or (count == 0 and row.params.top_p >= 1)


def _on(device: torch.device, words: np.ndarray[Any, Any]) -> Tensor:
    return _moved(device, torch.from_numpy(words))


def _moved(device: torch.device, host: Tensor) -> Tensor:
    """From pinned memory: a copy from any other would wait for the step."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
