"""What every dialect's request comes down to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from ninfer_core.api import CallRules, Grammar, PromptOptions


@frozen
class ServeRequest:
    """A request, in no dialect.

    :ivar messages: a conversation in the shape of OpenAI's chat completions, as
        `Frontend.prepare` takes it; cache markers of clients are ``cache_control`` members of
        content parts and messages.
    :ivar prompt: in the place of messages: text or token ids that are read as they are.
    :ivar prefill: text behind the messages that the answer goes on from.
    :ivar tools: declarations, OpenAI's shape.
    :ivar sampling: members of `SamplingParams` that the client gave; the model's own are used for
        the rest. Choice ``i`` of several draws with the seed ``i`` places after the first's.
    :ivar max_tokens: most output tokens; None for all that fit, 0 to read the prompt alone.
    :ivar num_choices: answers to give.
    :ivar raw: all text is content, as the model wrote it.
    :ivar logprobs, prompt_logprobs: as in `GenerationRequest`.
    :ivar record: what the request log says of it besides, such as the effort that took effect.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    prompt: str | Sequence[int] | None = None
    prefill: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    options: PromptOptions = PromptOptions()
    sampling: Mapping[str, Any] = field(factory=dict)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    num_choices: int = 1
    grammar: Grammar | None = None
    calls: CallRules = CallRules()
    thinking_budget: int | None = None
    deadline_s: float | None = None
    raw: bool = False
    use_cache: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    record: Mapping[str, Any] = field(factory=dict)
