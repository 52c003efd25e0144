"""What is known of each row of logits, and what it changes in them before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

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


class LateMask:
    """A mask that is asked for when it is first needed: behind the drafts of a step, while the
    model runs."""

    def __init__(self, ask: Callable[[], Tensor | None]) -> None:
        self._ask = ask

    @cached_property
    def found(self) -> tuple[Tensor | None, Exception | None]:
        """The mask, or why there is none: which counts only if the request comes that far."""
        try:
            return self._ask(), None
        except Exception as error:
            return None, error


@frozen(eq=False)
class SampleRow:
    """One row of logits.

    :ivar position: of the token to be drawn. :ivar purpose: of the draw.
    :ivar history: of the request; without it there are no penalties.
    :ivar pending: draft tokens between the history and this row.
    :ivar mask: bool ``[V]`` in host memory, True for allowed tokens; None allows all.
    """

    params: SamplingParams
    position: int
    purpose: Purpose = Purpose.TOKEN
    history: TokenHistory | None = None
    pending: tuple[int, ...] = ()
    _mask: Tensor | LateMask | None = None

    @property
    def mask(self) -> Tensor | None:
        """None also where there is a fault."""
        return self._mask.found[0] if isinstance(self._mask, LateMask) else self._mask

    @property
    def fault(self) -> Exception | None:
        """Of what should have said the mask; nothing can be drawn then."""
        return self._mask.found[1] if isinstance(self._mask, LateMask) else None

    @property
    def is_free(self) -> bool:
        """Whether it takes the logits as they are."""
        free = self.mask is None and self.fault is None
        return free and (self.history is None or not penalises(self.params))

    def allows(self, token: int) -> bool:
        """Whether a token may be drawn."""
        return self.fault is None and (self.mask is None or bool(self.mask[token]))


def adjust(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Penalties, then mask, on a copy of ``[R, V]``; itself if there is nothing to do."""
    if all(row.is_free for row in rows):
        return logits
    adjusted = logits.clone()
    for i, row in enumerate(rows):
        if row.history is not None and penalises(row.params):
            _penalise(adjusted[i], row, row.history.counts, row.history.seen)
        if row.mask is not None:
            adjusted[i].masked_fill_(_on(logits.device, ~row.mask), -torch.inf)
        if row.fault is not None:
            adjusted[i].fill_(-torch.inf)
    return adjusted


def _on(device: torch.device, mask: Tensor) -> Tensor:
    """From pinned memory: a copy from any other would wait for the step."""
    if device.type == "cuda":
        mask = mask.pin_memory()
    return mask.to(device, non_blocking=True)


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
