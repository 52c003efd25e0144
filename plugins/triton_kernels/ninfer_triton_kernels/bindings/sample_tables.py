"""What drawing knows of rows and of drafts, as tables on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import SampleRow, penalises
from ninfer_core.sampling.verify import Drafted
from ninfer_triton_kernels.kernels import drafts as draft_kernels
from ninfer_triton_kernels.kernels import sampling as kernels

TINY = torch.finfo(torch.float32).tiny

MOST_CHOICES = 64
"""Tokens that a row can choose from by rank; those of top-k with more are the reference's."""


@frozen(eq=False)
class RowTable:
    """What is known of rows, on a device.

    :ivar most: tokens that a row chooses from by rank. :ivar held: tensors whose addresses it has.
    """

    table: Tensor
    most: int
    is_whole: bool
    is_touched: bool
    held: Sequence[Tensor]

    @classmethod
    def of(cls, rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> RowTable:
        pending = [row.pending if _is_penalised(row) else () for row in rows]
        begin = len(rows) * kernels.COLUMNS.value
        words = np.zeros(begin + sum(map(len, pending)), np.int64)
        table = words[:begin].reshape(len(rows), -1)
        numbers, held = table.view(np.float64), list[Tensor]()
        for row, before, line, floats in zip(rows, pending, table, numbers, strict=True):
            p, (count, is_whole) = row.params, choices(row, vocab_size)
            floats[: kernels.COUNT.value] = (
                max(p.temperature, TINY), p.top_p, p.min_p,
                uniform(p.seed, row.position, row.purpose) if p.temperature else 0.0,
                p.repetition_penalty, p.presence_penalty, p.frequency_penalty,
            )
            counts, seen, mask = _addresses(row, vocab_size, device, held)
            is_barred = row.fault is not None
            is_touched = is_barred or bool(counts or mask)
            line[kernels.COUNT.value :] = (
                count, is_whole, is_touched, is_barred, counts, seen, mask, begin, len(before),
            )
            words[begin : begin + len(before)] = before
            begin += len(before)
        columns = table[:, kernels.COUNT.value : kernels.IS_BARRED.value]
        most, is_whole, is_touched = columns.max(0).tolist()
        return cls(_on(device, words), most, bool(is_whole), bool(is_touched), held)


def _addresses(
    row: SampleRow, vocab_size: int, device: torch.device, held: list[Tensor]
) -> tuple[int, int, int]:
    """Of counts, of what was seen, and of the mask on the device; 0 for none."""
    counts = seen = mask = 0
    if row.history is not None and penalises(row.params):
        counts, seen = row.history.counts.data_ptr(), row.history.seen.data_ptr()
    if row.mask is not None:
        if row.mask.dtype != torch.bool or row.mask.shape != (vocab_size,):
            raise ValueError(f"a mask is {row.mask.dtype} {list(row.mask.shape)}, not torch.bool "
                             f"[{vocab_size}]")
        held.append(_moved(device, row.mask.contiguous()))
        mask = held[-1].data_ptr()
    return counts, seen, mask


def draft_table(drafted: Sequence[Drafted], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """As `kernels.drafts` reads it, int64 ``[S, columns]``, and tensors whose addresses it has."""
    most = max(len(each.drafts) for each in drafted if is_drawn(each))
    first, held, lines = 0, list[Tensor](), list[Sequence[int]]()
    for each in drafted:
        if is_drawn(each) and each.proposals is not None:
            held.append(each.proposals.double().contiguous())
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


def is_drawn(each: Drafted) -> bool:
    return each.proposals is not None and each.rows[0].params.temperature > 0


def _is_penalised(row: SampleRow) -> bool:
    return row.history is not None and penalises(row.params)


def choices(row: SampleRow, vocab_size: int) -> tuple[int, bool]:
    """How many of the best tokens are sought, and whether the mass of all tokens counts; of top-p
    alone as many as there may be, which need not be enough."""
    p = row.params
    if p.temperature == 0:
        return 1, False
    if p.top_k:
        return min(p.top_k, vocab_size), False
    return min(MOST_CHOICES, vocab_size) if p.top_p < 1 else 1, True


def _on(device: torch.device, words: np.ndarray[Any, Any]) -> Tensor:
    return _moved(device, torch.from_numpy(words))


def _moved(device: torch.device, host: Tensor) -> Tensor:
    """From pinned memory: a copy from any other would wait for the step."""
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
