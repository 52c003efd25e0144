"""What grammars cost: compiling, and a mask a token, over a vocabulary of the size that is asked
for, in CPU time of the one thread that does it. Answers are random."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping

from ninfer_core.api import CallRules, ConstraintCompiler, ConstraintContext, Grammar
from ninfer_core.api.lazy import to_lazy
from ninfer_tool_calls.function_calls import SYNTAX

PERSON = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
          "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                         "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4}}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": PERSON}}
CASES = {
    "json": (Grammar("json"), CallRules()),
    "json_schema": (Grammar("json_schema", json.dumps(PERSON)), CallRules()),
    "regex": (Grammar("regex", r"[A-Z][a-z]+( [a-z]+){3,40}\."), CallRules()),
    "calls": (None, CallRules(required=True)),
    "text or calls": (None, CallRules(strict=frozenset({"find"}))),
}


class Words:
    """A tokenizer of all bytes and made-up words, read greedily."""

    def __init__(self, size: int) -> None:
        rng, made = random.Random(0), dict.fromkeys(bytes([each]) for each in range(256))
        letters = b"etaoinshrdlucmfwypvbgkjqxz"
        while len(made) < size - 3:
            count = min(rng.randint(2, 4) + rng.randint(0, 5), 12)
            word = bytes(letters[int(26 * rng.random() ** 2)] for _ in range(count))
            made[rng.choice([b"", b" ", b" ", b'"', b"\n", b"_"]) + word] = None
        self._tokens, self._ids = [*made], {word: index for index, word in enumerate(made)}
        tags = ("<|end|>", "<tool_call>", "</tool_call>")
        self.control_ids: Mapping[str, int] = {tag: size - 3 + i for i, tag in enumerate(tags)}
        self.vocab_size = size

    def token_bytes(self, token_id: int) -> bytes:
        """Its bytes; control tokens give their text."""
        if token_id < len(self._tokens):
            return self._tokens[token_id]
        return [*self.control_ids][token_id - len(self._tokens)].encode()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The longest tokens, one after the other."""
        return [*self._greedy(text.encode())]

    def _greedy(self, rest: bytes) -> Iterator[int]:
        while rest:
            size = next(n for n in range(min(len(rest), 14), 0, -1) if rest[:n] in self._ids)
            yield self._ids[rest[:size]]
            rest = rest[size:]


def measure(compiler: ConstraintCompiler, name: str, count: int, end: frozenset[int]) -> None:
    """Print one case: ms to compile, us of masks (median, 99th percentile, most), of commits."""
    grammar, calls = CASES[name]
    begin = time.thread_time()
    new = compiler.compile(grammar, calls, [TOOL])
    compiled, rng = time.thread_time() - begin, random.Random(1)
    masks, commits = list[float](), list[float]()
    constraint = new(end)
    while len(masks) < count:
        begin = time.thread_time()
        mask = constraint.mask(())
        masks.append(time.thread_time() - begin)
        assert mask is not None
        token = rng.choice(mask.nonzero().flatten().tolist())
        begin = time.thread_time()
        constraint.commit([token])
        commits.append(time.thread_time() - begin)
        if token in end:
            constraint = new(end)
    ranked = [1e6 * each for each in sorted(masks)]
    figures = (
        1e3 * compiled, statistics.median(ranked), ranked[int(0.99 * count)], ranked[-1],
        1e6 * statistics.mean(commits),
    )
    print(f"{name:14}", *(f"{each:8.{int(each < 100)}f}" for each in figures))


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=248_077)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--compiler", type=to_lazy, metavar="MODULE:NAME",
                        default="ninfer_constraints.compiler:Compiler",
                        help="ninfer_xgrammar.compiler:Compiler is XGrammar's")
    arguments = parser.parse_args()
    words = Words(arguments.vocabulary)
    begin = time.thread_time()
    compiler = arguments.compiler.load()(
        ConstraintContext(words, arguments.vocabulary, SYNTAX))
    compiler.compile(Grammar("choice", '["a"]'), CallRules(), [])
    print(f"vocabulary of {arguments.vocabulary}: {time.thread_time() - begin:.2f} s")
    print("grammar         compile   median      p99     most   commit")
    end = frozenset({words.control_ids["<|end|>"]})
    for name in CASES:
        measure(compiler, name, arguments.tokens, end)


if __name__ == "__main__":
    main()
