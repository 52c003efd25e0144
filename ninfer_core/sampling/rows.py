"""What is known of each row of logits, and what it changes in them before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import SamplingParams
from ninfer_core.sampling.random import Purpose


class TokenHistory:
    """Tokens of a request as penalties see them; needed only where `penalises` holds.

    :ivar counts: fp32 ``[V]``, occurrences among the generated tokens.
    :ivar seen: bool ``[V]``, occurs in the prompt or among the generated tokens.
    """

    def __init__(
        self, vocab_size: int, prompt: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        self.counts = torch.zeros(vocab_size, device=device)
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[list(prompt)] = True

    def append(self, token: int) -> None:
        """A generated token was committed."""
        self.counts[token] += 1
        self.seen[token] = True


def penalises(params: SamplingParams) -> bool:
    """Whether any penalty is in force."""
    additive = params.presence_penalty or params.frequency_penalty
    return bool(additive) or params.repetition_penalty != 1


@frozen(eq=False)
class SampleRow:
    """One row of logits.

    :ivar position: of the token to be drawn. :ivar purpose: of the draw.
    :ivar history: of the request; without it there are no penalties.
    :ivar pending: draft tokens between the history and this row.
    :ivar mask: bool ``[V]``, True for allowed tokens; None allows all.
    """

    params: SamplingParams
    position: int
    purpose: Purpose = Purpose.TOKEN
    history: TokenHistory | None = None
    pending: tuple[int, ...] = ()
    mask: Tensor | None = None


def adjust(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Penalties, then mask, on a copy of ``[R, V]``; itself if there is nothing to do."""
    adjusted = logits
    for i, row in enumerate(rows):
        penalty = row.history if penalises(row.params) else None
        if (penalty or row.mask is not None) and adjusted is logits:
            adjusted = logits.clone()
        if penalty:
            _penalise(adjusted[i], row, penalty.counts, penalty.seen)
        if row.mask is not None:
            adjusted[i].masked_fill_(~row.mask, -torch.inf)
    return adjusted


def _penalise(logits: Tensor, row: SampleRow, counts: Tensor, seen: Tensor) -> None:
    """Repetition, then presence and frequency, in place."""
    if row.pending:
        pending = torch.tensor(row.pending, device=logits.device)
        counts = counts.index_put((pending,), torch.ones_like(counts[:1]), accumulate=True)
        seen = seen.index_fill(0, pending, True)
    factor = row.params.repetition_penalty
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits.copy_(torch.where(seen, repeated, logits))
    logits -= (counts > 0) * row.params.presence_penalty + counts * row.params.frequency_penalty
