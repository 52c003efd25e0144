"""The draft head: the output head's rows of a shortlist of tokens, in few bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, frozen
from tokenizers import Tokenizer
from torch import Tensor

from ninfer_core.api import (
    ConfigError,
    ImportedParameter,
    ImportPlan,
    ParameterSpec,
    StorageChoice,
)

HEAD, TOKEN_IDS = "proposal/head", "proposal/token_ids"
OUTPUT_HEAD, EMBEDDING = "text/output_head", "text/token_embedding"
FORMAT = "q4_g64_fp16"
_CHUNK_CHARACTERS = 1 << 16


@frozen
class DraftHead:
    """What a draft head is made of.

    :ivar rows: tokens that it can draft; None for all.
    :ivar corpus: a text whose most frequent tokens they are; None for the lowest ids.
    """

    rows: int | None = None
    corpus: Path | None = None

    def component(self, plan: ImportPlan) -> dict[str, Any]:
        """How component ``text`` describes it.

        :raises ConfigError: if the model has not that many tokens.
        """
        most = _output_head(plan).spec.shape[0]
        if self.rows is None:
            return {"domain": "full", "rows": most}
        if self.rows > most:
            raise ConfigError("the draft head cannot have so many rows", where="--proposal",
                              why=f"{self.rows} > {most}, all that the output head has")
        return {"domain": "indexed", "rows": self.rows}


def add_draft_head(
    plan: ImportPlan, expected: Iterable[ParameterSpec], wanted: DraftHead
) -> ImportPlan:
    """The plan with the draft head's parameters.

    :param expected: the parameters of the model, those of the draft head among them.
    :raises ConfigError: if the model knows no draft head, or has not that many tokens.
    """
    specs = {spec.name: spec for spec in expected}
    if HEAD not in specs:
        raise ConfigError("this model has no draft head", fix="convert it without --proposal")
    head = _output_head(plan)
    vocab_size = head.spec.shape[0]
    if wanted.rows is None:
        made = [_picked(specs[HEAD], head, torch.arange(vocab_size))]
    else:
        ids = _shortlist(plan.resources, vocab_size, wanted.rows, wanted.corpus)
        made = [
            _picked(specs[HEAD], head, ids),
            ImportedParameter(
                specs[TOKEN_IDS], (), lambda: ids, lambda: {"codes": ids.int()}, "int32"
            ),
        ]
    text = {**plan.components["text"], "proposal": wanted.component(plan)}
    recipe = (StorageChoice(HEAD, FORMAT), *plan.recipe)
    return evolve(
        plan, components={**plan.components, "text": text}, recipe=recipe,
        parameters=(*plan.parameters, *made),
    )


def _output_head(plan: ImportPlan) -> ImportedParameter:
    """The output head, or the table that it is tied to."""
    stored = {each.spec.name: each for each in plan.parameters}
    return stored.get(OUTPUT_HEAD) or stored[EMBEDDING]


def _picked(spec: ParameterSpec, head: ImportedParameter, ids: Tensor) -> ImportedParameter:
    """The head's rows of tokens, whose ids ascend."""

    def values() -> Tensor:
        if head.rows is None:
            return head.values()[ids]
        first, last = int(ids[0]), int(ids[-1])
        return head.rows(first, last + 1).values()[ids - first]

    def rows(begin: int, end: int) -> ImportedParameter:
        shape = (end - begin, *spec.shape[1:])
        return _picked(evolve(spec, shape=shape), head, ids[begin:end])

    return ImportedParameter(spec, (), values, rows=head.rows and rows)


def _shortlist(
    resources: Mapping[str, bytes], vocab_size: int, rows: int, corpus: Path | None
) -> Tensor:
    """int64 ``[rows]``, ascending: all special tokens, and of the others the most frequent ones, of
    equally frequent ones the lower ids."""
    if "tokenizer.json" not in resources:
        raise ConfigError("a draft head needs a tokenizer", why="there is no tokenizer.json")
    tokenizer = Tokenizer.from_str(resources["tokenizer.json"].decode())
    special = {each for each in tokenizer.get_added_tokens_decoder() if each < vocab_size}
    known = {each for each in tokenizer.get_vocab().values() if each < vocab_size}
    if not len(special) <= rows <= len(known):
        raise ConfigError(
            "the draft head cannot have so many rows", why=f"{rows} is not within "
            f"{len(special)} (special tokens) and {len(known)} (all tokens)",
        )
    counts = Counter() if corpus is None else _count(tokenizer, corpus)
    ranked = sorted(known, key=lambda each: (each not in special, -counts[each], each))
    return torch.tensor(sorted(ranked[:rows]))


def _count(tokenizer: Tokenizer, corpus: Path) -> Counter[int]:
    counts: Counter[int] = Counter()
    try:
        for text in _chunks(corpus):
            counts.update(tokenizer.encode(text, add_special_tokens=False).ids)
    except (OSError, ValueError) as error:
        raise ConfigError("cannot read the corpus", where=str(corpus), why=str(error)) from error
    return counts


def _chunks(corpus: Path) -> Iterator[str]:
    """A text in pieces that end with lines."""
    with corpus.open(encoding="utf-8") as file:
        while lines := file.readlines(_CHUNK_CHARACTERS):
            yield "".join(lines)
