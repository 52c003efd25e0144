"""A `tokenizer.json` out of the vocabulary in a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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


def tokenizer_json(vocabulary: Mapping[str, Any]) -> bytes:
    """The tokenizer of a GGUF file.

    :param vocabulary: its metadata ``tokenizer.ggml.*`` without that prefix: ``model``, ``pre``,
        ``tokens``, ``token_type``, ``merges``.
    :raises ArtifactError: if one of them is missing.
    :raises UnsupportedError: if it is no byte-level BPE, or its pre-tokenizer is unknown here.
    """
    _check(vocabulary)
    tokens: list[str] = vocabulary["tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary["merges"]]
    tokenizer = Tokenizer(BPE({text: i for i, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[vocabulary["pre"]]()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens([
        AddedToken(text, special=kind == CONTROL, normalized=False)
        for text, kind in zip(tokens, vocabulary["token_type"], strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ])
    return tokenizer.to_str().encode()


def _check(vocabulary: Mapping[str, Any]) -> None:
    for key in ("tokens", "token_type", "merges"):
        if key not in vocabulary:
            raise ArtifactError("the GGUF file is damaged", why=f"tokenizer.ggml.{key} is missing")
    for key, known in (("model", ("gpt2",)), ("pre", tuple(PRE_TOKENIZERS))):
        if vocabulary.get(key) not in known:
            raise UnsupportedError(
                "the tokenizer in the GGUF file is not supported",
                why=f"tokenizer.ggml.{key} is {vocabulary.get(key)!r}; "
                f"supported: {', '.join(known)}",
                fix="convert from the Hugging Face directory, which has a tokenizer.json",
            )
