"""Tokenizers out of GGUF files, against llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ninfer_convert.gguf_source import GgufSource
from ninfer_convert.gguf_tokenizer import tokenizer_json
from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.text.tokenizer import HfTokenizer
from ninfer_pack_smollm2.embedded import locate

LLAMA_CPP = json.loads((Path(__file__).parent / "data" / "smollm2_token_ids.json").read_text())
TINY = {
    "model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab", "<x>", "<y>"],
    "token_type": [1, 1, 1, 3, 4], "merges": ["a b"],
}


@pytest.fixture(scope="module")
def smollm2() -> HfTokenizer:
    return HfTokenizer(GgufSource(locate()).resources["tokenizer.json"])


@pytest.mark.parametrize("case", LLAMA_CPP, ids=lambda case: repr(case["text"][:20]))
def test_smollm2_ids_are_those_of_llama_cpp(smollm2, case):
    assert smollm2.encode(case["text"]) == case["ids"]
    assert b"".join(map(smollm2.token_bytes, case["ids"])).decode() == case["text"]


def test_token_types():
    tokenizer = Tokenizer.from_str(tokenizer_json(TINY).decode())
    assert tokenizer.encode("ab<x>b<y>").ids == [2, 3, 1, 4]
    added = tokenizer.get_added_tokens_decoder()
    assert {index: token.special for index, token in added.items()} == {3: True, 4: False}


@pytest.mark.parametrize("change", [{"model": "llama"}, {"pre": "llama-bpe"}, {"pre": None}])
def test_other_tokenizers_are_refused(change):
    with pytest.raises(UnsupportedError, match=rf"{next(iter(change))} is .*supported: "):
        tokenizer_json(TINY | change)


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges"])
def test_an_incomplete_vocabulary_is_refused(key):
    with pytest.raises(ArtifactError, match=f"tokenizer.ggml.{key} is missing"):
        tokenizer_json({name: value for name, value in TINY.items() if name != key})
