"""The text side of chat models that come with the usual Hugging Face files."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from attrs import evolve

from ninfer_core.api import (
    ArtifactError,
    CallSyntax,
    OutputParser,
    PreparedPrompt,
    PromptOptions,
    ReasoningTokens,
    RequestError,
    SamplingParams,
)
from ninfer_core.text.marks import is_marked, marks_of, with_signs, without_markers
from ninfer_core.text.messages import check_tools, template_messages
from ninfer_core.text.parsers import PlainParser
from ninfer_core.text.template import ChatTemplate
from ninfer_core.text.thinking import check_thinking
from ninfer_core.text.tokenizer import HfTokenizer

_log = logging.getLogger(__name__)


class ChatFrontend:
    """A frontend for text, without reasoning and tools beyond what the template writes.

    :cvar reasoning: opening and closing tag of reasoning blocks, if the model has such.
    :cvar call_syntax: how it writes calls, if it does.
    :param resources: by role: ``tokenizer.json``, ``chat_template.jinja``,
        ``generation_config.json`` (``eos_token_id``, an id or a list of ids, and perhaps sampling
        parameters), and perhaps ``tokenizer_config.json`` (``bos_token`` and ``eos_token``, which
        templates may use).
    :raises ArtifactError: naming a resource that is missing or unusable.
    """

    reasoning: ClassVar[tuple[str, str] | None] = None
    call_syntax: ClassVar[CallSyntax | None] = None

    def __init__(self, resources: Mapping[str, bytes]) -> None:
        self.tokenizer = HfTokenizer(_need(resources, "tokenizer.json"))
        template = _need(resources, "chat_template.jinja").decode(errors="replace")
        self.template = ChatTemplate(template, self.tokenizer, reasoning=self.reasoning)
        config = _object({"tokenizer_config.json": b"{}", **resources}, "tokenizer_config.json")
        self._variables: dict[str, Any] = _special_tokens(config)
        if config.get("add_bos_token") and "bos_token" not in self.template.variables:
            _log.info("add_bos_token of the tokenizer config is not followed: the chat template "
                      "alone says how a conversation begins")
        generation = _object(resources, "generation_config.json")
        self.eos_token_ids = _eos_ids(generation)
        self._sampling = _sampling(generation)

    @cached_property
    def reasoning_tokens(self) -> ReasoningTokens | None:
        """None if the model has no such tags, or no tokens for them."""
        controls = self.tokenizer.control_ids
        if self.reasoning is None or not controls.keys() >= {*self.reasoning}:
            return None
        opening, closing = self.reasoning
        forced = self.tokenizer.encode(f"\n{closing}\n\n", special=True)
        spaces = self.tokenizer.space_ids
        return ReasoningTokens(
            controls[opening], controls[closing], tuple(forced), spaces,
            newlines=frozenset(i for i in spaces if not self.tokenizer.token_bytes(i).strip(b"\n")))

    def sampling_defaults(self, prompt: PreparedPrompt) -> SamplingParams:
        """What the generation config says."""
        return self._sampling

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (),
        options: PromptOptions = PromptOptions(),
    ) -> PreparedPrompt:
        """Render a conversation of texts; content in parts is joined. Markers are as
        `ninfer_core.text.marks` has them."""
        if tools and "tools" not in self.template.variables:
            raise RequestError("the model takes no tools", why="its chat template has none")
        check_tools(tools)
        plain = without_markers(messages), without_markers(tools)
        prompt = self.template.prepare(**self._arguments(*plain, options))
        check_thinking(options, prompt)
        if not is_marked(messages, tools):
            return prompt
        signed = self._arguments(with_signs(messages), with_signs(tools), options)
        marks = marks_of(prompt, self.template.text(**signed), self.tokenizer)
        return evolve(prompt, marks=marks)

    def compose(
        self, messages: Sequence[Mapping[str, Any]], options: PromptOptions
    ) -> dict[str, Any]:
        """What `ChatTemplate.prepare` takes, but for the tools."""
        if options.preserve_thinking:
            raise RequestError("the model cannot be asked for that", where="preserve thinking",
                               why="its chat template has no reasoning")
        return {"messages": template_messages(messages)}

    def _arguments(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]],
        options: PromptOptions,
    ) -> dict[str, Any]:
        return self._variables | self.compose(messages, options) | {"tools": tools}

    def parser(self, prompt: PreparedPrompt) -> OutputParser:
        """All of the answer is content."""
        return PlainParser()


def _need(resources: Mapping[str, bytes], role: str) -> bytes:
    if role not in resources:
        raise ArtifactError(
            "the model has no text side", why=f"its resource {role} is missing",
            fix="convert it from a checkpoint that has this file",
        )
    return resources[role]


def _object(resources: Mapping[str, bytes], role: str) -> dict[str, Any]:
    raw = _need(resources, role)
    try:
        found = json.loads(raw)
        if isinstance(found, dict):
            return found
        why = f"it is {reprlib.repr(found)}, not an object"
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise ArtifactError("a file of the text side is damaged", where=role, why=why)


def _eos_ids(generation_config: Mapping[str, Any]) -> frozenset[int]:
    found = generation_config.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    if not ids or not all(type(each) is int for each in ids):
        raise ArtifactError("no token ends an answer of this model",
                            where="generation_config.json", why=f"eos_token_id is {found!r}")
    return frozenset(ids)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: tokenizer_config.get(name) for name in ("bos_token", "eos_token")}
    texts = {n: t.get("content") if isinstance(t, dict) else t for n, t in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _sampling(generation_config: Mapping[str, Any]) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p")
    given = {name: generation_config.get(name) for name in names}
    try:
        return SamplingParams(**{name: each for name, each in given.items() if each is not None})
    except (RequestError, TypeError) as error:
        raise ArtifactError("sampling parameters make no sense", where="generation_config.json",
                            why=str(error)) from error
