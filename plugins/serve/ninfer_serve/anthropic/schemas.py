"""Bodies and answers as the OpenAPI document shows them. Requests are read by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Object = dict[str, Any]
Blocks = str | list[Object]
UNSET = msgspec.UNSET


class InputMessage(Struct):
    role: Literal["assistant", "system", "user"]
    content: Blocks


class Tool(Struct):
    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,128}$")]
    input_schema: Object
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Object | None = None


class ToolChoice(Struct):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    type: Literal["adaptive", "between_tools", "disabled", "enabled"]
    budget_tokens: Annotated[int, Meta(ge=1024)] | None = None
    display: Literal["summarized"] | None = None


class Format(Struct):
    type: Literal["json_schema"]
    schema: Object


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class TokenCountRequest(Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    model: str | None = None
    system: Blocks | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Object | None = None
    context_management: Object | None = None


class MessageRequest(TokenCountRequest, kw_only=True):
    """A conversation to go on with."""

    max_tokens: Count | None = None
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    metadata: Object | None = None


class OutputDetails(Struct):
    thinking_tokens: int


class Usage(Struct):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class Block(Struct):
    type: Literal["text", "thinking", "tool_use"]
    text: str | msgspec.UnsetType = UNSET
    thinking: str | msgspec.UnsetType = UNSET
    signature: str | msgspec.UnsetType = UNSET
    id: str | msgspec.UnsetType = UNSET
    name: str | msgspec.UnsetType = UNSET
    input: Object | msgspec.UnsetType = UNSET


class Message(Struct):
    """The answer, or events of it as a stream"""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: Literal[
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
    ]
    stop_sequence: str | None
    usage: Usage


class TokenCount(Struct):
    """The tokens of the prompt"""

    input_tokens: int


class ErrorDetail(Struct):
    type: str
    message: str


class Error(Struct):
    """What went wrong"""

    type: Literal["error"]
    error: ErrorDetail
    request_id: str | None
