"""The toy's text side: bytes are tokens, and four control tokens mark the turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_core.api import (
    OutputParser,
    PreparedPrompt,
    PromptOptions,
    RequestError,
    SamplingParams,
)
from ninfer_core.text.parsers import ReasoningParser

END = "<|end|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
CONTROLS = {text: 256 + index for index, text in enumerate((END, *ROLES.values()))}
SPELLING = {index: text.encode() for text, index in CONTROLS.items()}


class ByteTokenizer:
    """Ids 0 to 255 are bytes, the next four are control tokens."""

    vocab_size, control_ids = 256 + len(CONTROLS), CONTROLS

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """With ``special``, the text of one control token gives its id."""
        if special and text in CONTROLS:
            return [CONTROLS[text]]
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        """One byte, or a control token's text; nothing for the padding of the vocabulary."""
        return bytes([token_id]) if token_id < 256 else SPELLING.get(token_id, b"")


class ToyFrontend:
    """Turns are ``<|role|>content<|end|>``; the answer may begin with a reasoning block."""

    tokenizer = ByteTokenizer()
    eos_token_ids = frozenset({CONTROLS[END]})
    reasoning_tokens = None
    call_syntax = None

    def sampling_defaults(self, prompt: PreparedPrompt) -> SamplingParams:
        return SamplingParams()

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (),
        options: PromptOptions = PromptOptions(),
    ) -> PreparedPrompt:
        """Scaffolding becomes control tokens, content never does."""
        if not messages:
            raise RequestError("there are no messages", fix="send at least one")
        ids: list[int] = []
        for message in messages:
            ids += self.encode_turn(message)
        ids += self.tokenizer.encode(ROLES["assistant"], special=True)
        text = b"".join(map(self.tokenizer.token_bytes, ids)).decode()
        return PreparedPrompt(tuple(ids), text)

    def encode_turn(self, message: Mapping[str, Any]) -> list[int]:
        """The tokens of one message."""
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise RequestError("malformed message", why=f"role {role!r}, content {content!r}")
        return [CONTROLS[ROLES[role]], *self.encode_content(content), CONTROLS[END]]

    def encode_content(self, content: str) -> list[int]:
        """Plain text, whatever it spells."""
        return self.tokenizer.encode(content)

    def parser(self, prompt: PreparedPrompt) -> OutputParser:
        return ReasoningParser(reasoning_open=prompt.reasoning_open)
