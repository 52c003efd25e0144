"""What a request reused, and what it could have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ninfer_core.api import PreparedPrompt, Tokenizer
from ninfer_core.engine.request import Reuse
from ninfer_core.state.step import PAGE_TOKENS


@frozen
class Served:
    """A request that was served.

    :ivar reusable: tokens of the prompt that an earlier request began with and whose states were
        computed then: what a cache could give that forgets nothing and keeps a state at every
        token.
    :ivar is_explained: whether the record shows what made a prompt new that begins with a nonce.
    """

    label: str
    prompt_tokens: int
    output_tokens: int
    reusable: int
    reused: int
    kind: str
    tier: str
    diverged_at: int | None
    known: str
    new: str
    is_explained: bool
    prefill_s: float

    @property
    def loss(self) -> str:
        """Why less was reused than could have been."""
        lost = self.reusable - self.reused
        if lost <= 0:
            return ""
        if lost <= PAGE_TOKENS:
            return "up to the grid of pages"
        return f"no state is kept between {self.reused:,} and {self.reusable:,}"


@define
class Known:
    """Sequences whose states were computed."""

    sequences: list[NDArray[np.int32]] = field(factory=list)

    def add(self, tokens: Iterable[int]) -> None:
        """All tokens of a request; the last one's state was never wanted."""
        self.sequences.append(np.array([*tokens][:-1], np.int32))

    def reusable(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt, but the last one, that one of them begins with."""
        tokens = np.array(prompt[:-1], np.int32)
        return max((_common(tokens, each) for each in self.sequences), default=0)


def explains(reuse: Reuse, prompt: PreparedPrompt, nonce: str, tokenizer: Tokenizer) -> bool:
    """Whether the record of a miss shows text of the prompt at a place that is not behind its
    nonce, the first thing that sets it apart from all others."""
    before, _, _ = prompt.text.partition(nonce)
    end = len(tokenizer.encode(before + nonce, special=True))
    at, shown = reuse.diverged_at, reuse.known + reuse.new
    return at is not None and at < end and shown in prompt.text


def _common(one: NDArray[np.int32], another: NDArray[np.int32]) -> int:
    length = min(len(one), len(another))
    differs = np.flatnonzero(one[:length] != another[:length])
    return int(differs[0]) if len(differs) else length
