"""From logits to tokens: penalties, mask, top-k, temperature, min-p, top-p, draw.

Ties go to the lower id everywhere. A row's token depends, bit for bit, on its own logits and
`SampleRow` alone: every operation works row by row, and masses are prefix sums in FP64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ninfer_core.api import SamplingParams
from ninfer_core.sampling.random import uniform
from ninfer_core.sampling.rows import SampleRow, adjust

INVALID = -1
"""In place of a token: the logits are not finite, or the mask allows nothing."""

FIRST_CANDIDATES = 1024
"""Tokens that top-p without top-k looks at before it sorts the vocabulary (rarely needed)."""

Params = list[SamplingParams]
Survivors = tuple[Tensor, Tensor]
"""Ids, int64 ``[R, K]``, and their unnormalised weights ``[R, K]``; weight 0 = dropped."""


class Sampler:
    """Draws one token per row of logits."""

    def likeliest(
        self, logits: Tensor, token_ids: Tensor | None = None, *, out: Tensor | None = None,
        least: int = INVALID,
    ) -> Tensor | None:
        """What `sample` draws greedily for rows that are free, made within the step that makes the
        logits, which may be captured; None where it is made when it is asked for.

        :param token_ids: int64, of the columns of ``logits``, negative for no token; None: all in
            order. :param out: takes the tokens. :param least: 0 gives a token to rows without any.
        """
        return None

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """Tokens int64 ``[R]`` for fp32 ``[R, V]``; `INVALID` where the request must fail."""
        logits = adjust(logits, rows)
        if all(row.params.temperature == 0 for row in rows):
            tokens = logits.argmax(-1)
        else:
            tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
            for group, ids, weights in _groups(logits, rows):
                drawn = draw(weights, [rows[i] for i in group])
                tokens[group] = ids.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        return tokens.masked_fill_(~logits.amax(-1).isfinite(), INVALID)

    def probabilities(self, logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """What `sample` draws from, fp64 ``[R, V]``; zeros where the request must fail."""
        logits = adjust(logits, rows)
        result = torch.zeros_like(logits, dtype=torch.float64)
        for group, ids, weights in _groups(logits, rows):
            mass = weights / weights.sum(-1, keepdim=True, dtype=torch.float64)
            result[group] = result[group].scatter_(-1, ids, mass)
        return result.masked_fill_(~logits.amax(-1, keepdim=True).isfinite(), 0)


def draw(weights: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Inverse of the distribution function: ``[R, K]`` weights to int64 ``[R]`` indexes."""
    mass = weights.cumsum(-1, dtype=torch.float64)
    numbers = [uniform(row.params.seed, row.position, row.purpose) for row in rows]
    index = torch.searchsorted(mass, _column(mass, numbers) * mass[:, -1:], right=True).squeeze(-1)
    return index.clamp_(max=weights.shape[-1] - 1)  # rows that are not finite end there


def _groups(
    logits: Tensor, rows: Sequence[SampleRow]
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows that need the same work, and their survivors."""
    groups: dict[Callable[[Tensor, Params], Survivors], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[_selection(row.params)].append(i)
    for select, group in groups.items():
        yield group, *select(logits[group], [rows[i].params for i in group])


def _selection(params: SamplingParams) -> Callable[[Tensor, Params], Survivors]:
    if params.temperature == 0:
        return _greedy
    if params.top_k:
        return _top_k
    return _top_p if params.top_p < 1 else _all


def _greedy(logits: Tensor, params: Params) -> Survivors:
    ids = logits.argmax(-1, keepdim=True)
    return ids, torch.ones_like(ids)


def _all(logits: Tensor, params: Params) -> Survivors:
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    return ids, _weights(logits, params)


def _top_k(logits: Tensor, params: Params) -> Survivors:
    limits = [min(each.top_k, logits.shape[-1]) for each in params]
    ids = order_keys(logits).topk(max(limits)).indices
    weights = _weights(logits, params).gather(-1, ids).double()
    ranks = torch.arange(max(limits), device=logits.device)
    weights.masked_fill_(ranks >= _column(logits, limits), 0)
    return ids, _nucleus(weights, weights.cumsum(-1)[:, -1:], params)


def _top_p(logits: Tensor, params: Params) -> Survivors:
    weights, keys = _weights(logits, params), order_keys(logits)
    total = torch.stack([row.sum(dtype=torch.float64) for row in weights]).unsqueeze(-1)
    for count in (min(FIRST_CANDIDATES, logits.shape[-1]), logits.shape[-1]):
        ids = keys.topk(count).indices
        kept = _nucleus(weights.gather(-1, ids).double(), total, params)
        if not kept[:, -1].any():  # every nucleus ends within the candidates
            break
    return ids, kept


def _nucleus(ranked: Tensor, total: Tensor, params: Params) -> Tensor:
    """Keep the smallest prefix whose mass reaches ``top_p * total``, one token at least."""
    before = ranked.cumsum(-1) - ranked
    reached = before >= _column(ranked, [p.top_p for p in params]) * total
    return ranked.masked_fill(reached & (before > 0), 0)


def _weights(logits: Tensor, params: Params) -> Tensor:
    """Temperature and min-p over the whole vocabulary: fp32 ``[R, V]``."""
    scaled = logits - logits.amax(-1, keepdim=True)  # first, so that no temperature overflows
    tiny = torch.finfo(logits.dtype).tiny  # nor is one too small for the type of the logits
    temperatures = [max(p.temperature, tiny) for p in params]
    weights = scaled.div_(_column(logits, temperatures)).softmax(-1)
    if any(p.min_p for p in params):
        least = weights.amax(-1, keepdim=True) * _column(logits, [p.min_p for p in params])
        weights.masked_fill_(weights < least, 0)
    return weights


def order_keys(logits: Tensor) -> Tensor:
    """Unique int64 keys that order by logit, then by lower id."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 makes the zeros equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return ordered.to(torch.int64).mul_(len(ids)).sub_(ids)


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)
