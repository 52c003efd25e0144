"""Logarithms of probabilities in the model's own distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ninfer_core.sampling.sampler import order_keys

BLOCK_ROWS = 8
"""Rows that are looked at together, so that whole prompts take little memory."""

Ranked = tuple[float, list[tuple[int, float]]]
"""The logprob of a token, and ids and logprobs of the likeliest ones, the likeliest first."""


def rank(logits: Tensor, token_ids: Sequence[int], most: int) -> Iterator[Ranked]:
    """Where a token stands in each row of fp32 ``[R, V]``; natural logarithms, made in FP64.

    :param token_ids: one of each row. :param most: how many of the likeliest are named; ties go to
        the lower id.
    """
    most = min(most, logits.shape[-1])
    for start in range(0, len(token_ids), BLOCK_ROWS):
        rows, ids = logits[start : start + BLOCK_ROWS], token_ids[start : start + BLOCK_ROWS]
        named = torch.tensor(ids, device=rows.device).unsqueeze(-1)
        if most:
            named = torch.cat([named, order_keys(rows).topk(most).indices], -1)
        total = rows.double().logsumexp(-1, keepdim=True)
        values = (rows.gather(-1, named).double() - total).tolist()
        for (_, *top), (own, *others) in zip(named.tolist(), values, strict=True):
            yield own, list(zip(top, others, strict=True))
