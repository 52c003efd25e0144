"""The text side of a model: tokens, prompts, answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from attrs import frozen

from ninfer_core.api.specs import SamplingParams


class Tokenizer(Protocol):
    """Text to ids and back; ids to bytes, because a character may span tokens."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Id of each control token by its text."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """``special``: whether control-token text becomes control tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; control tokens give their text."""
        ...


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@frozen
class PromptOptions:
    """What a request asks of the chat template; None leaves it to the model's default.

    :ivar thinking: whether the answer begins with reasoning.
    :ivar effort: how much; a frontend maps it to what its template knows.
    :ivar preserve_thinking: whether reasoning of earlier turns stays in the prompt.
    """

    thinking: bool | None = None
    effort: ReasoningEffort | None = None
    preserve_thinking: bool | None = None


@frozen
class PreparedPrompt:
    """A request's input after the frontend.

    :ivar token_ids: the whole prompt.
    :ivar text: the rendered prompt, for logs and diagnosis.
    :ivar reasoning_open: whether the prompt ends inside an open reasoning block.
    :ivar tools: declarations of the tools that the answer may call, OpenAI's shape.
    :ivar num_stable: first tokens that other conversations with the same system prompt and tools
        begin with, too; 0 if that is not known.
    :ivar marks: numbers of tokens after which a client wants the prompt to be reusable; the last
        eight count.
    :ivar scope: what tells apart computations of equal tokens, such as digests of media; literals,
        as ``repr`` writes them for good.
    """

    token_ids: tuple[int, ...]
    text: str
    reasoning_open: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    num_stable: int = 0
    marks: tuple[int, ...] = ()
    scope: Any = None


@frozen
class OutputPart:
    """A piece of an answer: ``channel`` is ``content`` or ``reasoning``."""

    channel: str
    text: str


@frozen
class ToolCall:
    """A complete call of a declared tool.

    :ivar index: 0 for the first of an answer. :ivar arguments: a JSON object, as text.
    """

    index: int
    name: str
    arguments: str


AnswerPart = OutputPart | ToolCall


class OutputParser(Protocol):
    """Splits the answer's text into channels and calls; the result does not depend on how the text
    is cut. A call is given when it is complete; what never becomes one is content."""

    def feed(self, text: str) -> Sequence[AnswerPart]: ...

    def finish(self) -> Sequence[AnswerPart]: ...


@frozen
class ReasoningTokens:
    """How a model marks reasoning in tokens.

    :ivar opening, closing: ids of the marks.
    :ivar forced: what ends a block whose budget is spent; it contains ``closing``.
    :ivar spaces: tokens of white space alone, behind which a block may still be opened. Behind any
        other the answer has begun, and ``opening`` is text.
    :ivar newlines: those of newlines alone, which belong to a closed block and not to the answer.
    """

    opening: int
    closing: int
    forced: tuple[int, ...]
    spaces: frozenset[int] = frozenset()
    newlines: frozenset[int] = frozenset()


@frozen
class CallSyntax:
    """How a model writes a call: ``opening``, the name, ``named``, for each argument ``parameter``,
    its name, ``keyed``, its value and ``valued``, then ``closing``. A string is written as it is,
    any other value as JSON. Tags that are control tokens are written as such.

    :ivar separator: between one call and the next.
    :ivar begins: tags that text without a call must not have, because a call may begin with them;
        ``opening`` begins with the first.
    :ivar reserved: tags that a string must not have, because its value might end there.
    """

    opening: str
    named: str
    parameter: str
    keyed: str
    valued: str
    closing: str
    separator: str
    begins: tuple[str, ...]
    reserved: tuple[str, ...]


class Frontend(Protocol):
    """Everything of a model that is about text."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def reasoning_tokens(self) -> ReasoningTokens | None:
        """None if the model does not reason in blocks."""
        ...

    @property
    def call_syntax(self) -> CallSyntax | None:
        """None if the model writes no calls."""
        ...

    def sampling_defaults(self, prompt: PreparedPrompt) -> SamplingParams:
        """What the model's makers recommend for such a prompt."""
        ...

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (),
        options: PromptOptions = PromptOptions(),
    ) -> PreparedPrompt:
        """Render a conversation; raises `RequestError` for malformed messages, and for options that
        the model does not have.

        A ``cache_control`` member of a message, a content part or a tool is a client's marker: it
        changes no prompt, and becomes one of its ``marks``, behind what has it.
        """
        ...

    def parser(self, prompt: PreparedPrompt) -> OutputParser: ...
