"""Bodies and answers as the OpenAPI document shows them. Requests are read by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0)]
Object = dict[str, Any]
UNSET = msgspec.UNSET


class StreamOptions(Struct):
    include_usage: bool | None = None


class Generation(Struct, kw_only=True):
    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    seed: int | None = None
    stop: str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)] | None = (
        None
    )
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_prompt: bool | None = None
    structured_outputs: Object | None = None


class Message(Struct):
    role: Literal["assistant", "developer", "function", "system", "tool", "user"]
    content: str | list[Object] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Object] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(Generation, kw_only=True):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[Object] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    response_format: Object | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: (
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None) = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=1)] | None = None
    chat_template_kwargs: Object | None = None
    continue_final_message: bool | None = None
    return_progress: bool | None = None


class CompletionRequest(Generation, kw_only=True):
    """A text to go on with; prompts may be several, and token ids."""

    prompt: Annotated[str, Meta(min_length=1)] | Annotated[list[Any], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class AnswerMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | msgspec.UnsetType = UNSET
    reasoning: str | msgspec.UnsetType = UNSET
    tool_calls: list[Object] | msgspec.UnsetType = UNSET


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    logprobs: Object | None
    finish_reason: FinishReason


class ChatCompletion(Struct):
    """The answers to a conversation, or chunks of them as server-sent events"""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: dict[str, float]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: Object | None
    finish_reason: FinishReason


class Completion(Struct):
    """What follows a text, or chunks of it as server-sent events"""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    timings: dict[str, float]


class Model(Struct):
    """A model that is served"""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: str
    max_input_tokens: int


class ModelList(Struct):
    """The models that are served"""

    object: Literal["list"]
    data: list[Model]


class TokenizeRequest(Struct):
    """A text under one of two names, or a conversation."""

    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    tools: list[Object] | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class Tokens(Struct):
    """Token ids, or with pieces: objects of id and piece"""

    tokens: list[Any]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct):
    """Token ids."""

    tokens: list[TokenId]


class Text(Struct):
    """A text, under the names of two dialects"""

    content: str
    prompt: str
