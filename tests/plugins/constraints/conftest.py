"""A small vocabulary with the tags of Qwen's calls, and a model that knows nothing but the mask."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ninfer_core.api import (
    CallRules,
    ConstraintContext,
    ConstraintSpec,
    Grammar,
    TokenConstraint,
)
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.text.tokenizer import HfTokenizer
from ninfer_tool_calls.function_calls import SYNTAX

ENDS = ["<|endoftext|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
CORPUS = [
    '{"name": "a b", "items": [1, 22, 3.5e-7, true, false, null], "東京": {"x": "é"}}\n'
    "<function=get>\n<parameter=city>\n\n</parameter>\n</function> yes no ```\n\n    \t"
] * 4


@pytest.fixture(scope="session")
def tokenizer_json() -> Callable[..., bytes]:
    """``(tags) -> file`` of a tokenizer in which these are control tokens, besides two that end
    answers."""

    def make(tags=TAGS):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
            vocab_size=340, special_tokens=ENDS, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ))
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in tags])
        return tokenizer.to_str().encode()

    return make


class Lab:
    """A tokenizer, a compiler on it, and what can be done with both.

    :ivar engine: name of the compiler's engine. :ivar module: of its plugin.
    """

    def __init__(self, tokenizer: HfTokenizer, spec: ConstraintSpec, module: str) -> None:
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        self.engine, self.module = spec.name, module
        compiler = spec.compiler.load()
        self.compiler = compiler(ConstraintContext(tokenizer, self.vocab_size, SYNTAX))
        self.end_ids = frozenset(tokenizer.control_ids[text] for text in ENDS)

    def constraint(self, kind=None, source="", *, calls=CallRules(), tools=()) -> TokenConstraint:
        """At its beginning; a source that is no text is written as JSON."""
        text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        grammar = None if kind is None else Grammar(kind, text)
        return self.compiler.compile(grammar, calls, tools)(self.end_ids)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=True)

    def text(self, ids) -> str:
        return b"".join(map(self.tokenizer.token_bytes, ids)).decode()

    def takes(self, constraint: TokenConstraint, text: str) -> bool | None:
        """Whether a whole text is allowed, with an end behind it; None if it only may go on."""
        for token in self.ids(text):
            if not constraint.mask(())[token]:
                return False
            constraint.commit([token])
        mask = constraint.mask(())
        ends = {bool(mask[each]) for each in self.end_ids}
        assert len(ends) == 1
        return ends.pop() or None

    def parsed(self, text: str):
        """JSON, with numbers that no float can hold brought in."""
        return json.loads(text, parse_float=lambda each: max(-1e308, min(1e308, float(each))))

    def reads(self, kind, source, text, **options) -> bool | None:
        return self.takes(self.constraint(kind, source, **options), text)

    def goes_on(self, constraint: TokenConstraint, ids: list[int]) -> bool:
        """Whether all of these may follow."""
        return all(constraint.mask(tuple(ids[:i]))[ids[i]] for i in range(len(ids)))

    def walk(self, constraint: TokenConstraint, seed: int, patience: int = 60) -> str:
        """Text of tokens at random, of all that are allowed; after some, what closes things is
        preferred, so that it ends."""
        rng, ids, plan = random.Random(seed), list[int](), list[int]()
        closers = [self.ids(text) for text in ("\n</parameter>\n", '"', "}", "]")]
        while len(ids) < 3000:
            mask = constraint.mask(())
            allowed = mask.nonzero().flatten().tolist()
            assert allowed, f"a dead end behind {self.text(ids)!r}"
            if not plan and len(ids) > patience and rng.random() < 0.8:
                options = [*([end] for end in self.end_ids), *closers]
                plan = next((each for each in options if self.goes_on(constraint, each)), [])
                plan = [*plan]
            token = plan.pop(0) if plan and mask[plan[0]] else rng.choice(allowed)
            if token in self.end_ids:
                return self.text(ids)
            ids.append(token)
            constraint.commit([token])
        raise AssertionError(f"no end: {self.text(ids)[:200]!r}")


def installed() -> Iterator[tuple[ConstraintSpec, str]]:
    """Constraint engines, each with the module of its plugin."""
    for each in load_plugins(PluginSelection()).registry.constraints.values():
        yield each.spec, each.provenance.module


@pytest.fixture(scope="session", params=installed(), ids=lambda each: each[0].name)
def constraint_engine(request) -> tuple[ConstraintSpec, str]:
    """Every one that is installed, one after the other."""
    return request.param


@pytest.fixture(scope="session")
def lab(tokenizer_json, constraint_engine) -> Lab:
    return Lab(HfTokenizer(tokenizer_json()), *constraint_engine)


@pytest.fixture(scope="session")
def plain_lab(tokenizer_json, constraint_engine) -> Lab:
    """The tags are text like any other."""
    return Lab(HfTokenizer(tokenizer_json([])), *constraint_engine)


def tool(name, parameters=None, **more) -> dict:
    function = {"name": name, **more}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def composed(schemas, count):
    """Objects and arrays of some schemas."""
    rng = random.Random(5)
    parts = [each for each in schemas if each and "$ref" not in json.dumps(each)]
    for _ in range(count):
        names = rng.sample(["id", "kind", "value", "meta", "list", "note"], rng.randint(1, 3))
        yield {
            "type": "object", "properties": {name: rng.choice(parts) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))),
            "additionalProperties": False,
        }
        yield {"type": "array", "items": {"anyOf": [*rng.sample(parts, 2)]}, "maxItems": 3}


@pytest.fixture(scope="session")
def schemas() -> list:
    """Of public shapes, and composed of these; the last lines of the file are to be refused."""
    lines = (Path(__file__).parent / "data" / "schemas.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [*found, *composed(found, 30)]


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    return SimpleNamespace(tool=tool, Lab=Lab, ENDS=ENDS)
