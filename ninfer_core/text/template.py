"""Chat templates, rendered in a sandbox."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer_core.api import ArtifactError, PreparedPrompt, RequestError
from ninfer_core.text.tokenizer import HfTokenizer

MAX_CHARS = 1 << 24
"""Of a prompt, which takes some seconds to tokenise: 16 a token in a context of a million."""
SYSTEM = ("system", "developer")
"""Roles of messages that come before a conversation."""


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, **options: Any) -> str:
    """JSON with literal UTF-8: escapes would double the tokens of non-English text."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _sandbox() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _location(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f"chat template, line {lines[-1]}" if lines else "chat template"


class ChatTemplate:
    """A jinja chat template with the conventions of Hugging Face's.

    :param tokenizer: tokenises what the template renders.
    :param reasoning: opening and closing tag of reasoning blocks, if the model has such.
    :param max_chars: most characters of a rendering.
    :ivar variables: names that the template takes from outside.
    :raises ArtifactError: if the template does not compile.
    """

    def __init__(
        self, source: str, tokenizer: HfTokenizer, *, reasoning: tuple[str, str] | None = None,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._tokenizer, self._reasoning, self._max_chars = tokenizer, reasoning, max_chars
        # agents send the same system prompt and tools again and again
        self._encode_beginning = lru_cache(maxsize=8)(partial(tokenizer.encode, special=True))
        try:
            sandbox = _sandbox()
            self._template = sandbox.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(sandbox.parse(source)))
        except TemplateSyntaxError as error:
            raise ArtifactError(
                "the chat template does not compile", where=f"line {error.lineno}", why=str(error)
            ) from error

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *,
        tools: Sequence[Mapping[str, Any]] = (),
        rewrite: Callable[[str], str] = lambda text: text, **variables: Any,
    ) -> PreparedPrompt:
        """Render and tokenise a conversation. Only what the template itself writes becomes
        control tokens; in messages and tools their text stays text.

        :param rewrite: changes the rendered text, in which content is still hidden.
        :param variables: further variables of the template; ``add_generation_prompt`` is true.
        :raises RequestError: if the template refuses the conversation, naming the line, or if the
            conversation is nested too deeply.
        """
        content = self._hidden(messages, tools)
        text = rewrite(self.render(**content, **variables))
        opening, closing = self._reasoning or ("", "")
        token_ids = tuple(self._tokenizer.encode(text, special=True))
        return PreparedPrompt(
            token_ids=token_ids, text=self._tokenizer.control_text.reveal(text),
            reasoning_open=bool(opening) and text.rfind(opening) > text.rfind(closing),
            tools=tuple(tools), num_stable=self._num_stable(token_ids, content, variables),
        )

    def text(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (),
        rewrite: Callable[[str], str] = lambda text: text, **variables: Any,
    ) -> str:
        """The text that :meth:`prepare` tokenises."""
        content = self._hidden(messages, tools)
        text = rewrite(self.render(**content, **variables))
        return self._tokenizer.control_text.reveal(text)

    def _hidden(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        hide = self._tokenizer.control_text.hide
        try:
            return {"messages": hide(messages), "tools": hide(tools) or None}
        except RecursionError as error:
            why = "it is nested too deeply"
            raise RequestError("the conversation cannot be rendered", why=why) from error

    def _num_stable(
        self, token_ids: Sequence[int], content: Mapping[str, Any], variables: Mapping[str, Any]
    ) -> int:
        """Tokens that a conversation with the same system prompt and tools begins with, whatever
        its first message is; 0 if the template takes no other one."""
        messages = content["messages"]
        leading = list(takewhile(lambda message: message.get("role") in SYSTEM, messages))
        first = messages[len(leading)].get("content") if len(leading) < len(messages) else None
        other = "1" if str(first or "").lstrip().startswith("0") else "0"
        beginning = [*leading, {"role": "user", "content": other}]
        try:
            text = self.render(**{**content, "messages": beginning}, **variables)
        except RequestError:
            return 0
        pairs = enumerate(zip(token_ids, self._encode_beginning(text), strict=False))
        return next((i for i, (one, another) in pairs if one != another), 0)

    def render(self, **variables: Any) -> str:
        """The plain rendering; raises as :meth:`prepare` does."""
        try:
            pieces = self._template.generate({"add_generation_prompt": True, **variables})
            return self._join(pieces)
        except RequestError:
            raise
        except Exception as error:  # a template can raise whatever Python can
            raise RequestError(
                "the chat template refused the conversation", where=_location(error),
                why=str(error) or type(error).__name__,
            ) from error

    def _join(self, pieces: Iterable[str]) -> str:
        text: list[str] = []
        left = self._max_chars
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise RequestError(
                    "the rendered prompt is too long", where="chat template",
                    why=f"more than {self._max_chars} characters", fix="shorten the messages",
                )
            text.append(piece)
        return "".join(text)
