"""Text that looks like an agent's, always the same for a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from ninfer_core.api import Tokenizer

PROSE = (
    "the file config parser returns error when path is empty test expects value of index check "
    "cache first token before request handler reads buffer into memory and writes result line "
    "module import function class method argument option default build step page table frontier "
    "commit branch merge diff patch update remove rename add review fix todo note because"
)
WORDS = PROSE.split()
ENDS = (" ", " ", " ", " ", " ", " ", " ", "\n")

PARAMETERS = {
    "read_file": ("path", "offset", "limit"),
    "write_file": ("path", "content"),
    "edit_file": ("path", "old", "new", "count"),
    "search": ("pattern", "path", "glob"),
    "run": ("command", "timeout_s"),
    "list_directory": ("path", "depth"),
}


class Writer:
    """Writes by the token.

    :param tokenizer: counts them. :param scale: of the lengths of `between`.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, scale: float = 1.0) -> None:
        self._tokenizer, self._random, self._scale = tokenizer, Random(seed), scale

    def text(self, tokens: int) -> str:
        """Lines of so many tokens, or a few more."""
        words, count = list[str](), 0
        while count < tokens:
            words.append(self._random.choice(WORDS) + self._random.choice(ENDS))
            count += len(self._tokenizer.encode(words[-1]))
        return "".join(words)

    def between(self, least: int, most: int) -> str:
        """A text of some length."""
        return self.text(round(self._scale * self._random.randint(least, most)))


Tool = dict[str, Any]


def tools(tokenizer: Tokenizer, tokens: int) -> list[Tool]:
    """Declarations of a coding agent's tools, as many as take so many tokens, one at least."""
    writer, made = Writer(tokenizer, 1), list[Tool]()
    for name, parameters in PARAMETERS.items():
        properties = {
            each: {"type": "string", "description": writer.text(12)} for each in parameters
        }
        function = {
            "name": name, "description": writer.text(60),
            "parameters": {
                "type": "object", "required": [parameters[0]], "properties": properties},
        }
        more = [*made, {"type": "function", "function": function}]
        if made and size_of(more, tokenizer) > tokens:
            break
        made = more
    return made


def size_of(declared: Sequence[Tool], tokenizer: Tokenizer) -> int:
    """Tokens of tools, about as a template writes them."""
    return len(tokenizer.encode(json.dumps(declared)))
