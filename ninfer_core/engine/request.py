"""What the engine is asked for, and the events it answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isnan
from typing import Literal, TypeVar

from attrs import field, frozen

from ninfer_core.api import (
    CallRules,
    Grammar,
    PreparedPrompt,
    RequestError,
    SamplingParams,
    ToolCall,
)

T = TypeVar("T")
FinishReason = Literal[
    "stop-token", "stop-string", "output-limit", "context-capacity", "cancelled", "deadline",
    "error",
]


def _texts(stops: str | Iterable[str]) -> tuple[str, ...]:
    """A string alone is one of them, not the iterable of its characters."""
    return (stops,) if isinstance(stops, str) else tuple(_each("stop", stops))


def _ids(token_ids: Iterable[int]) -> frozenset[int]:
    return frozenset(_each("stop_token_ids", token_ids))


def _each(name: str, given: Iterable[T]) -> Iterable[T]:
    if not isinstance(given, Iterable):
        raise RequestError(f"{name} must be a collection", why=f"it is {given!r}")
    return given


@frozen
class GenerationRequest:
    """One generation; raises `RequestError` for values that make no sense.

    :ivar max_tokens: most output tokens; every committed one counts, end tokens too. 0 reads the
        prompt alone.
    :ivar stop: strings before which the content ends; reasoning is not searched.
    :ivar stop_token_ids: end tokens besides the model's own, which ``ignore_eos`` turns off.
    :ivar deadline_s: seconds after submission at which the request ends, wherever it is.
    :ivar raw: all text is content, as the model wrote it.
    :ivar min_tokens: the first so many tokens are no end tokens, and their text is not searched for
        stop strings, nor found later.
    :ivar thinking_budget: most tokens of reasoning; a block that takes more is closed for the
        model.
    :ivar use_cache: whether it may go on from states of other requests, and leave its own.
    :ivar grammar: what the content must be. :ivar calls: what the tool calls must be.
    :ivar logprobs: how many of the likeliest tokens are named at each output token; None gives no
        `Logprobs` at all. :ivar prompt_logprobs: the same of the prompt.
    """

    prompt: PreparedPrompt
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = field(default=(), converter=_texts)
    stop_token_ids: frozenset[int] = field(default=frozenset(), converter=_ids)
    ignore_eos: bool = False
    deadline_s: float | None = None
    raw: bool = False
    min_tokens: int = 0
    thinking_budget: int | None = None
    use_cache: bool = True
    grammar: Grammar | None = None
    calls: CallRules = CallRules()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __attrs_post_init__(self) -> None:
        if not self.prompt.token_ids:
            raise RequestError("the prompt is empty", fix="give it at least one token")
        _require_integer("max_tokens", self.max_tokens, 0)
        _require_integer("min_tokens", self.min_tokens, 0)
        for name in ("logprobs", "prompt_logprobs"):
            if (most := getattr(self, name)) is not None:
                _require_integer(name, most, 0)
        if self.min_tokens > self.max_tokens:
            why = f"{self.min_tokens} > {self.max_tokens}"
            raise RequestError("min_tokens is above max_tokens", why=why)
        if self.thinking_budget is not None:
            _require_integer("thinking_budget", self.thinking_budget, 1)
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise RequestError("a stop string is empty or no string", fix="leave it out")
        limit = self.deadline_s
        if limit is not None and (not isinstance(limit, int | float) or isnan(limit)):
            raise RequestError("deadline_s is not a number", why=f"it is {limit!r}")


def _require_integer(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise RequestError(f"{name} must be an integer, {least} or more", why=f"it is {value!r}")


@frozen
class Reuse:
    """What a request did not have to read, and why not more.

    :ivar num_tokens: of the prompt, whose state was there.
    :ivar kind: of the restore point (``stable``, ``prompt``, ``turn``, ``mark``, ``branch``,
        ``anchor``).
    :ivar tier: memory that it came from. Both are "" without one.
    :ivar diverged_at: position of the first token that nothing in the cache has after those before
        it; None if all are known, or the cache was not asked.
    :ivar known, new: the text before that position, and from there on.
    :ivar num_pauses: how often it gave way to others.
    :ivar replayed_tokens: that were read once more after that.
    """

    num_tokens: int = 0
    kind: str = ""
    tier: str = ""
    diverged_at: int | None = None
    known: str = ""
    new: str = ""
    num_pauses: int = 0
    replayed_tokens: int = 0


@frozen
class Started:
    """The request was admitted.

    :ivar reuse: what it did not have to read. :ivar queue_s: seconds that it waited.
    """

    reuse: Reuse
    queue_s: float


@frozen
class Reading:
    """So many tokens of the prompt have been read, reused ones included."""

    num_tokens: int


@frozen
class TokenLogprob:
    """A token in the model's own distribution: before penalties, masks and temperature.

    :ivar logprob: natural logarithm; None for the first token of a prompt, which nothing predicts.
    :ivar top: ids and logprobs of the likeliest tokens, the likeliest first.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@frozen
class Logprobs:
    """Of the next tokens in their order: of the prompt, all of it before any output, or of output,
    each before its text."""

    tokens: tuple[TokenLogprob, ...]
    of_prompt: bool = False


@frozen
class TextDelta:
    """More text of a channel (``content`` or ``reasoning``); never empty."""

    channel: str
    text: str


@frozen
class Usage:
    """Token counts, and those of drafts as `DraftCounts` has them."""

    prompt_tokens: int
    output_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    rounds: int = 0
    fallback_steps: int = 0


@frozen
class Timings:
    """Seconds in the queue, from admission to the first token, from there to the end; tokens of the
    latter two, without those that were reused; and, of the engine so far, the most sequences at
    once and pages in use, by the cache too."""

    queue_s: float
    prefill_s: float
    prefill_tokens: int
    decode_s: float
    decode_tokens: int
    peak_sequences: int
    peak_pages: int


@frozen
class Finished:
    """The last event of a request.

    :ivar token_ids: all output tokens. :ivar stop: the stop string that ended it.
    :ivar cause: what went wrong, with reason ``error``, or ``deadline`` if it waited too long.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...]
    stop: str | None = None
    cause: Exception | None = None
    reuse: Reuse = Reuse()


Event = Started | Reading | Logprobs | TextDelta | ToolCall | Finished
Sink = Callable[[Event], None]
