"""``ngram_rows`` in integers of Python, token by token."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import xor

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.slot_rows import extend_window, slot_rows
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes


def _context(last: Sequence[int], eos: int) -> Iterator[int]:
    """``c_0, c_1 ...`` from the last tokens, each as its id + 1."""
    newest, *before = reversed(last)
    yield newest - 1
    cut = False
    for token in before:
        cut = cut or token in (0, eos + 1)
        yield eos if cut else token - 1


def bind(
    request: KernelRequest, window: SlotPlanes, multipliers: Tensor, moduli: Tensor,
    offsets: Tensor,
) -> Callable[[StepBatch, Tensor], Tensor]:
    size, heads = request.sizes["ngram_size"], request.sizes["heads_per_ngram"]
    eos, factors = request.sizes["eos"], multipliers.tolist()
    modulo, offset = moduli.tolist(), offsets.tolist()

    def rows_of(last: Sequence[int]) -> list[int]:
        products = (c * m for c, m in zip(_context(last, eos), factors, strict=True))
        _, *mixed = accumulate(products, xor)
        return [mixed[j // heads] % modulo[j] + offset[j] for j in range(len(modulo))]

    def ngram_rows(batch: StepBatch, rows: Tensor) -> Tensor:
        for row in slot_rows(batch):
            columns = extend_window(window, row, batch.token_ids[row.tokens] + 1).tolist()
            found = [rows_of(columns[t : t + size]) for t in range(row.end - row.begin)]
            made = torch.tensor(found, dtype=torch.int64, device=rows.device)
            rows[row.tokens] = made.view(len(found), len(modulo))
        return rows

    return ngram_rows
