"""The text side of a GGUF file in the form of Hugging Face files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, fields, frozen
from attrs.validators import deep_iterable, instance_of, optional
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence

from ninfer_core.api import ArtifactError, UnsupportedError

CONTROL, USER_DEFINED = 3, 4
"""Token types of GGUF that text is searched for before it is split."""


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False)


def _smollm() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


PRE_TOKENIZERS: Mapping[str, Callable[[], PreTokenizer]] = {"gpt-2": _gpt2, "smollm": _smollm}
"""How text is cut before merging, by the name GGUF has for it (``tokenizer.ggml.pre``)."""


_TEXTS, _NUMBERS = (deep_iterable(instance_of(each), instance_of(list)) for each in (str, int))
_TOKEN_ID = optional(instance_of(int))


@frozen(kw_only=True)
class Vocabulary:
    """A byte-level BPE: metadata ``tokenizer.ggml.*``; raises `ValueError` if it contradicts
    itself."""

    tokens: list[str] = field(validator=_TEXTS)
    token_type: list[int] = field(validator=_NUMBERS)
    merges: list[str] = field(validator=_TEXTS)
    bos_token_id: int | None = field(validator=_TOKEN_ID)
    eos_token_id: int | None = field(validator=_TOKEN_ID)
    eot_token_id: int | None = field(validator=_TOKEN_ID)

    def __attrs_post_init__(self) -> None:
        known = set(self.tokens)
        if not len(known) == len(self.tokens) == len(self.token_type):
            raise ValueError("tokens are repeated, or have not one type each")
        ids = (self.bos_token_id, self.eos_token_id, self.eot_token_id)
        if not all(0 <= each < len(self.tokens) for each in ids if each is not None):
            raise ValueError(f"special tokens {ids} are not all tokens")
        for merge in self.merges:
            left, space, right = merge.partition(" ")
            if not space or not {left, right, left + right} <= known:
                raise ValueError(f"merge {merge!r} is not of tokens")


def frontend_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """``tokenizer.json``, ``tokenizer_config.json``, ``generation_config.json`` and, if there is
    a template, ``chat_template.jinja``.

    :param metadata: ``tokenizer.*`` of the file; others do not matter.
    :raises UnsupportedError: if the tokenizer is no byte-level BPE, or cuts text in an unknown way.
    :raises ArtifactError: if the vocabulary is incomplete or contradicts itself.
    """
    vocabulary = _vocabulary(metadata)
    files = {
        "tokenizer.json": _tokenizer(vocabulary, metadata["tokenizer.ggml.pre"]).to_str(),
        "tokenizer_config.json": json.dumps(_special_tokens(vocabulary)),
        "generation_config.json": json.dumps({"eos_token_id": _ends(vocabulary)}),
    }
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template
    return {name: text.encode() for name, text in files.items()}


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    for key, known in (("model", ("gpt2",)), ("pre", tuple(PRE_TOKENIZERS))):
        if (found := metadata.get(f"tokenizer.ggml.{key}")) not in known:
            raise UnsupportedError(
                "the tokenizer in the GGUF file is not supported",
                why=f"tokenizer.ggml.{key} is {found!r}; supported: {', '.join(known)}",
                fix="convert from the Hugging Face directory, which has a tokenizer.json",
            )
    names = [each.name for each in fields(Vocabulary)]
    values: Any = {name: metadata.get(f"tokenizer.ggml.{name}") for name in names}
    try:
        return Vocabulary(**values)
    except (TypeError, ValueError) as error:
        raise ArtifactError("the GGUF file has no sound vocabulary", why=str(error)) from error


def _tokenizer(vocabulary: Vocabulary, pre: str) -> Tokenizer:
    ids = {text: index for index, text in enumerate(vocabulary.tokens)}
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in vocabulary.merges)]
    tokenizer = Tokenizer(BPE(ids, merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens([
        AddedToken(text, special=kind == CONTROL, normalized=False)
        for text, kind in zip(vocabulary.tokens, vocabulary.token_type, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ])
    return tokenizer


def _special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    """Texts that chat templates may use."""
    ids = {"bos_token": vocabulary.bos_token_id, "eos_token": vocabulary.eos_token_id}
    return {name: vocabulary.tokens[each] for name, each in ids.items() if each is not None}


def _ends(vocabulary: Vocabulary) -> list[int]:
    """Ends of the sequence, and of the turn where it has one of its own."""
    ids = (vocabulary.eos_token_id, vocabulary.eot_token_id)
    return [each for each in ids if each is not None]
