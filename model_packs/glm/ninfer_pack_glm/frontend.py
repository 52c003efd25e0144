"""The text side of GLM-5.3-Flash: its template's switches, reasoning and tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib import resources as package_resources
from typing import Any

from attrs import evolve

from ninfer_core.api import (
    OutputParser,
    PreparedPrompt,
    PromptOptions,
    ReasoningTokens,
    RequestError,
)
from ninfer_core.text.calls import CallScanner, ToolCallParser
from ninfer_core.text.frontend import ChatFrontend
from ninfer_core.text.messages import Message, split_reasoning, template_messages
from ninfer_core.text.parsers import ReasoningParser
from ninfer_core.text.thinking import wanted_thinking
from ninfer_pack_glm.tool_calls import SYNTAX, KeyValueCalls

TEMPLATE = "chat_template.jinja"
EFFORTS = {"low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}
"""The template knows three, and takes every other word for the highest."""
STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")
"""The end of a text, and turns of others: each ends an answer, whatever a checkpoint lists."""
_EFFORT_LINE = re.compile(r"<\|system\|>Reasoning Effort: \w+")
_OPEN, _CLOSED = "<|assistant|><think>", "<|assistant|><think></think>"


class GlmFrontend(ChatFrontend):
    """A checkpoint without a template gets the pack's own, which writes the same turns.

    A template that has no switch for thinking still begins an answer without, in the way of those
    that have one: without the line about efforts, and with an empty block.
    """

    reasoning = ("<think>", "</think>")
    call_syntax = SYNTAX

    def __init__(self, resources: Mapping[str, bytes]) -> None:
        own = (package_resources.files(__package__) / TEMPLATE).read_bytes()
        super().__init__({TEMPLATE: own, **resources})
        controls = self.tokenizer.control_ids
        self.eos_token_ids |= {controls[text] for text in STOPS if text in controls}

    @cached_property
    def reasoning_tokens(self) -> ReasoningTokens | None:
        """As of `ChatFrontend`; a block ends without newlines."""
        found = super().reasoning_tokens
        return found and evolve(found, forced=(found.closing,))

    def compose(
        self, messages: Sequence[Mapping[str, Any]], options: PromptOptions
    ) -> dict[str, Any]:
        """As `ChatFrontend.compose`, with reasoning; developers speak as the system."""
        made = [_as_system(each) for each in template_messages(messages)]
        made = [split_reasoning(each, *self.reasoning) for each in made]
        return {"messages": made, **self._switches(options)}

    def parser(self, prompt: PreparedPrompt) -> OutputParser:
        """Reasoning, content and calls of the tools that the prompt declares."""
        if not prompt.tools:
            return ReasoningParser(reasoning_open=prompt.reasoning_open)
        grammar = KeyValueCalls(prompt.tools)
        return ReasoningParser(
            reasoning_open=prompt.reasoning_open, content=ToolCallParser(grammar),
            calls=partial(CallScanner, grammar, in_prose=True),
        )

    def _switches(self, options: PromptOptions) -> dict[str, Any]:
        """The options as the template's variables."""
        switches: dict[str, Any] = {}
        thinking = wanted_thinking(options)
        if thinking is not None:
            switches["enable_thinking"] = thinking
            if not thinking and "enable_thinking" not in self.template.variables:
                switches["rewrite"] = _without_thinking
        if thinking and options.effort:
            switches["reasoning_effort"] = EFFORTS[options.effort]
        if options.preserve_thinking is not None:
            switches["clear_thinking"] = not options.preserve_thinking
            if "clear_thinking" not in self.template.variables:
                raise RequestError("the model cannot be asked for that", where="preserve thinking",
                                   why="its chat template has no such switch")
        return switches


def _as_system(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def _without_thinking(text: str) -> str:
    """A rendered prompt, in which content is still hidden, for an answer without reasoning."""
    text = _EFFORT_LINE.sub("", text, count=1)
    return text.removesuffix(_OPEN) + _CLOSED if text.endswith(_OPEN) else text
