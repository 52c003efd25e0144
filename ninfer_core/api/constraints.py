"""What answers are held to, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import frozen

from ninfer_core.api.frontend import CallSyntax, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Grammar:
    """What an answer's content must be.

    :ivar kind: ``json`` (any JSON object), ``json_schema``, ``regex``, ``choice`` (one of several
        texts) or ``grammar`` (the constraint engine's own notation).
    :ivar source: the schema as JSON text, the expression, a JSON array of the texts, the grammar;
        "" for ``json``.
    """

    kind: Literal["json", "json_schema", "regex", "choice", "grammar"]
    source: str = ""


@frozen
class CallRules:
    """What an answer's tool calls must be.

    :ivar required: whether there must be one.
    :ivar names: tools that may be called; None for all that are declared, () for none of them.
    :ivar parallel: whether there may be more than one.
    :ivar strict: names of tools whose arguments must follow their schema to the letter.
    """

    required: bool = False
    names: tuple[str, ...] | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()


class TokenConstraint(Protocol):
    """Narrows the next token of one request.

    It is told of tokens once they are committed. Drafts are only asked about, and leave no trace;
    so an answer is the same with and without them. One that raises fails its own request.
    """

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """What may follow the committed tokens and ``pending`` ones, all of them allowed.

        :return: bool ``[V]`` in host memory, True for allowed tokens, which the caller only reads;
            None for all.
        """
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """These tokens were generated."""
        ...


NewConstraint = Callable[[frozenset[int]], TokenConstraint]
"""A constraint at its beginning, from the tokens that end the output; it allows these where the
output may end, and those that are text also where the text may be: it is cut there."""


class ConstraintCompiler(Protocol):
    """Makes constraints of what requests want."""

    def compile(
        self, grammar: Grammar | None, calls: CallRules, tools: Sequence[Mapping[str, Any]]
    ) -> NewConstraint:
        """A constraint on an answer behind its reasoning: ``grammar`` holds its content, or with
        none content is free; in its place, or behind free content, there may be calls as the rules
        say. Called from any thread, and for an equal request again soon.

        :param tools: that may be called, OpenAI's shape; none without a call syntax.
        :raises RequestError: naming what is malformed, cannot be expressed or takes too long.
        """
        ...


@frozen(eq=False)
class ConstraintContext:
    """What a constraint compiler is made from.

    :ivar vocab_size: ids that masks are of; the tokenizer may know more.
    """

    tokenizer: Tokenizer
    vocab_size: int
    call_syntax: CallSyntax | None
