"""Bodies and answers as the OpenAPI document shows them. Requests are read by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ninfer_serve.openai.schemas import Count, Object, Penalty, Probability

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(Struct):
    effort: Effort | None = None
    summary: str | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class TextFormat(Struct, rename={"schema_": "schema"}):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Object | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Struct):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Input(Struct, kw_only=True):
    """What a response would be made from."""

    model: str | None = None
    input: str | list[Object] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Object] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None


class ResponseRequest(Input, kw_only=True):
    """What a response is to be made from, and how."""

    stream: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Count | None = None
    metadata: dict[str, str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=1)] | None = None
    chat_template_kwargs: Object | None = None
    background: Literal[False] | None = None
    client_metadata: Object | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Object | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: Object | None = None
    user: str | None = None


class InputDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class UsedReasoning(Struct):
    effort: Effort | None
    summary: str | None


class ResponseObject(Struct, kw_only=True):
    """A response, or the events of one as server-sent events"""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool
    error: Object | None
    incomplete_details: Object | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[Object]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: UsedReasoning
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: Object
    tool_choice: Any
    tools: list[Object]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: str
    usage: Usage | None
    user: str | None


class InputTokens(Struct):
    """The tokens of an input"""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Deleted(Struct):
    """That a response is forgotten"""

    id: str
    object: Literal["response"]
    deleted: bool


class ItemList(Struct):
    """A page of items"""

    object: Literal["list"]
    data: list[Object]
    first_id: str | None
    last_id: str | None
    has_more: bool
