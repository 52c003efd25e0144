"""The text side of chat models that come with the usual Hugging Face files."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_core.api import (
    ArtifactError,
    OutputParser,
    PreparedPrompt,
    RequestError,
    SamplingParams,
)
from ninfer_core.text.parsers import PlainParser
from ninfer_core.text.template import ChatTemplate
from ninfer_core.text.tokenizer import HfTokenizer

_log = logging.getLogger(__name__)


class ChatFrontend:
    """A frontend for text, without reasoning and tools beyond what the template writes.

    :param resources: by role: ``tokenizer.json``, ``chat_template.jinja``,
        ``generation_config.json`` (``eos_token_id``, an id or a list of ids), and perhaps
        ``tokenizer_config.json`` (``bos_token`` and ``eos_token``, which templates may use).
    :raises ArtifactError: naming a resource that is missing or unusable.
    """

    def __init__(self, resources: Mapping[str, bytes]) -> None:
        self.tokenizer = HfTokenizer(_need(resources, "tokenizer.json"))
        template = _need(resources, "chat_template.jinja").decode(errors="replace")
        self._template = ChatTemplate(template, self.tokenizer)
        self._takes_tools = "tools" in template
        config = _object({"tokenizer_config.json": b"{}", **resources}, "tokenizer_config.json")
        self._variables = _special_tokens(config)
        if config.get("add_bos_token") and "bos_token" not in template:
            _log.info("add_bos_token of the tokenizer config is not followed: the chat template "
                      "alone says how a conversation begins")
        self.eos_token_ids = _eos_ids(_object(resources, "generation_config.json"))
        self.sampling_defaults = SamplingParams()

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> PreparedPrompt:
        """Render a conversation of texts; content in parts is joined."""
        if not messages:
            raise RequestError("there are no messages", fix="send at least one")
        if tools and not self._takes_tools:
            raise RequestError("the model takes no tools", why="its chat template has none")
        texts = [_text_message(message) for message in messages]
        return self._template.prepare(texts, tools=tools, **self._variables)

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


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: tokenizer_config.get(name) for name in ("bos_token", "eos_token")}
    texts = {n: t.get("content") if isinstance(t, dict) else t for n, t in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _text_message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":  # it only called tools
        content = ""
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(
            "the model takes text only", where=f"message of {message.get('role')!r}",
            why=f"its content is {reprlib.repr(content)}",
        )
    return {**message, "content": content}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping) and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )
