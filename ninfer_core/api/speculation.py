"""Drafting of tokens that the target model verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor


@frozen(eq=False)
class DraftRequest:
    """A decoding sequence at the start of a round.

    :ivar tokens: prompt and output so far. :ivar limit: most drafts, at least 1.
    :ivar row: ``(drafts so far) -> SampleRow`` of the token after them: what the target will be
        sampled with (parameters, penalties, mask).
    :ivar state: its :class:`~ninfer_core.state.store.SequenceState`.
    """

    request_id: int
    tokens: Sequence[int]
    limit: int
    row: Callable[[tuple[int, ...]], Any]
    state: Any


@frozen(eq=False)
class Draft:
    """Drafted tokens.

    :ivar proposals: fp64 ``[n, V]``, the distributions they were drawn from; None if they were not
        drawn at random (argmax, looked up).
    """

    token_ids: tuple[int, ...] = ()
    proposals: Tensor | None = None


@frozen(eq=False)
class Advance:
    """What one sequence committed in the last step of the target model: its inputs
    ``tokens[begin:end]``.

    :ivar tokens: prompt and output so far; ``tokens[end]`` is known: the next token of the prompt,
        or the one just drawn.
    :ivar first_row: row of ``tokens[begin]`` among the step's tokens (and hidden states).
    :ivar decoding: whether the prompt has been read, so that drafts will be asked for.
    :ivar drafted, accepted: of the last proposal, if the step verified one; drafts behind the end
        of an answer do not count as accepted.
    """

    request_id: int
    tokens: Sequence[int]
    begin: int
    end: int
    first_row: int
    decoding: bool
    state: Any
    row: Callable[[tuple[int, ...]], Any]
    drafted: int = 0
    accepted: int = 0


class Speculator(Protocol):
    """Drafts tokens that the target model verifies.

    The engine calls `propose` before each decode step and `advance` after every step of the target
    model, also of a prompt. The first step of a request need not begin at its first token (others
    may have read that), and after a pause its last tokens may be read again. Drafts change the
    speed of an answer, never its distribution; a speculator that raises is switched off for the
    engine.
    """

    @property
    def max_drafts(self) -> int: ...

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """A draft for each request, in order; it may be empty."""
        ...

    def advance(self, steps: Sequence[Advance]) -> None:
        """The sequences of the last step that go on; hidden states of its rows are still valid."""
        ...

    def release(self, request_id: int) -> None:
        """The request is gone; drop what is held for it."""
        ...


@frozen(eq=False)
class SpeculatorContext:
    """What a speculator is made from.

    :ivar draft_tokens: most drafts of a round. :ivar vocab_size: drafts must be below it.
    :ivar model: the built model; a `PredictingModel` if the spec names a component.
    :ivar max_sequences: that decode at once. :ivar max_tokens: of a step.
    :ivar max_context: tokens of a sequence. :ivar device: of the model's tensors.
    :ivar judge: the :class:`~ninfer_core.sampling.verify.Judge` that draws the model's own tokens;
        the reference if None.
    """

    draft_tokens: int
    vocab_size: int
    model: Any
    max_sequences: int
    max_tokens: int
    max_context: int
    device: Any
    judge: Any = None


class AheadSpeculator(Speculator, Protocol):
    """One that drafts the next round behind a step, before the host knows what came of it: the host
    then launches the next one behind them, and finishes with the step while that runs."""

    def draft_ahead(self, rows: Sequence[Any], tokens: Tensor, accepted: Tensor) -> Tensor:
        """Read what a step commits, and draft as `propose` would behind it. All of its rows are
        greedy and nothing constrains them; each brought `max_drafts` drafts, and has room for as
        many. `advance` tells later which of them go on, and how far. Returns the last token and the
        drafts of each row, int64 ``[S, max_drafts + 1]`` on the device, all within the vocabulary.

        :param rows: a :class:`~ninfer_core.state.batch.Row` each; of their tokens, only the places
            are known to the host. Their pages hold ``2 * max_drafts`` tokens behind the first.
        :param tokens: int64 ``[S, max_drafts + 1]`` on the device: what the model says behind each.
        :param accepted: int64 ``[S]`` on the device: drafts that are kept; ``tokens[i, accepted]``
            follows them.
        """
        ...

    def drafted_ahead(self, requests: Sequence[DraftRequest]) -> Tensor | None:
        """What `draft_ahead` has returned last; None unless these requests, and no others, were
        drafted for, and read as far as they are now."""
        ...
