"""The text side of Qwen 3.5 to 3.8: their templates' switches, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ninfer_core.api import (
    OutputParser,
    PreparedPrompt,
    PromptOptions,
    RequestError,
    SamplingParams,
)
from ninfer_core.text.calls import CallScanner, ToolCallParser
from ninfer_core.text.control_text import Scaffolding
from ninfer_core.text.frontend import ChatFrontend
from ninfer_core.text.messages import Message, split_reasoning, template_messages
from ninfer_core.text.parsers import ReasoningParser
from ninfer_core.text.thinking import wanted_thinking
from ninfer_tool_calls.function_calls import SYNTAX, FunctionCalls

INSTRUCT = SamplingParams(temperature=0.7, top_p=0.8, top_k=20, presence_penalty=1.5)
"""For answers without reasoning, by the model cards; generation_config.json is for the others."""
EFFORTS = {"low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh", "max": "xhigh"}
SYSTEM = ("system", "developer")
QUERY = Scaffolding("<tool_response>")


class QwenFrontend(ChatFrontend):
    """A template that takes ``reasoning_effort`` is one of Qwen 3.8: it has three efforts, and
    reads reasoning from ``reasoning_content`` alone. One of 3.6 has thinking on or off.

    The templates refuse a system message that is not the first, and a conversation without a
    user's query. Here leading system messages become one, later ones stay where they are, and no
    query is needed.
    """

    reasoning = ("<think>", "</think>")
    call_syntax = SYNTAX

    def compose(
        self, messages: Sequence[Mapping[str, Any]], options: PromptOptions
    ) -> dict[str, Any]:
        """As `ChatFrontend.compose`, with reasoning and later system messages."""
        made = template_messages(messages)
        if "reasoning_effort" not in self.template.variables:
            made = [split_reasoning(message, *self.reasoning) for message in made]
        made, turns = self._place_system(made)
        rewrite = partial(_rewrite, turns=turns)
        return {"messages": made, "rewrite": rewrite, **self._switches(options)}

    def parser(self, prompt: PreparedPrompt) -> OutputParser:
        """Reasoning, content and calls of the tools that the prompt declares."""
        if not prompt.tools:
            return ReasoningParser(reasoning_open=prompt.reasoning_open)
        grammar = FunctionCalls(prompt.tools)
        return ReasoningParser(
            reasoning_open=prompt.reasoning_open, content=ToolCallParser(grammar),
            calls=partial(CallScanner, grammar, in_prose=True),
        )

    def sampling_defaults(self, prompt: PreparedPrompt) -> SamplingParams:
        """Those of the generation config, or without reasoning those of the model card."""
        if prompt.reasoning_open or self.reasoning_tokens is None:
            return super().sampling_defaults(prompt)
        return INSTRUCT

    def _switches(self, options: PromptOptions) -> dict[str, Any]:
        """The options as the template's variables."""
        switches: dict[str, Any] = {}
        thinking = wanted_thinking(options)
        if thinking is not None:
            switches["enable_thinking"] = thinking
        if thinking and options.effort:
            switches["reasoning_effort"] = EFFORTS[options.effort]
        if options.preserve_thinking is not None:
            switches["preserve_thinking"] = options.preserve_thinking
            if "preserve_thinking" not in self.template.variables:
                raise RequestError("the model cannot be asked for that", where="preserve thinking",
                                   why="its chat template has no such switch")
        return switches

    def _place_system(self, messages: list[Message]) -> tuple[list[Message], dict[str, str]]:
        """Messages that the template takes, and the turns of its rendering to be replaced.

        A later system message is rendered as a user's tool response, which is no query; a missing
        query, or what should stand before a first tool response, as a user's message. Content
        cannot spell these turns: its tags are hidden.
        """
        first = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM), len(messages))
        leading = [m["content"] for m in messages[:first]]
        made, turns = list[Message](), dict[str, str]()
        if leading:
            text = leading[0] if first == 1 else "\n\n".join(filter(str.strip, leading))
            made.append({"role": "system", "content": text})
        roles = [message["role"] for message in messages[first:]]
        if "user" not in roles or roles[0] == "tool":
            made.append({"role": "user", "content": QUERY})
            turns[_turn("user", QUERY)] = ""
        for message in messages[first:]:
            if message["role"] in SYSTEM:
                mark = Scaffolding(f"<tool_response>{len(turns)}</tool_response>")
                text = self.tokenizer.control_text.hide(message["content"]).strip()
                turns[_turn("user", mark)] = _turn("system", text) if text else ""
                message = {"role": "user", "content": mark}
            made.append(message)
        return made, turns


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _rewrite(text: str, turns: Mapping[str, str]) -> str:
    for rendered, wanted in turns.items():
        if rendered not in text:
            raise RequestError("the chat template cannot render the conversation",
                               why="it begins with no user's query, or has later system messages")
        text = text.replace(rendered, wanted, 1)
    return text
