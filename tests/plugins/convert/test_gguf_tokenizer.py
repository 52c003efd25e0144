"""Tokenizers out of GGUF files, against llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ninfer_convert.gguf_source import GgufSource
from ninfer_convert.gguf_tokenizer import frontend_files
from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.text.tokenizer import HfTokenizer
from ninfer_pack_smollm2.embedded import locate

LLAMA_CPP = json.loads((Path(__file__).parent / "data" / "smollm2_token_ids.json").read_text())
TINY = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<x>", "<y>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3, 4], "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "hello",
}


@pytest.fixture(scope="module")
def smollm2() -> HfTokenizer:
    return HfTokenizer(GgufSource(locate()).resources["tokenizer.json"])


@pytest.mark.parametrize("case", LLAMA_CPP, ids=lambda case: repr(case["text"][:20]))
def test_smollm2_ids_are_those_of_llama_cpp(smollm2, case):
    assert smollm2.encode(case["text"]) == case["ids"]
    assert b"".join(map(smollm2.token_bytes, case["ids"])).decode() == case["text"]


def test_token_types():
    tokenizer = Tokenizer.from_str(frontend_files(TINY)["tokenizer.json"].decode())
    assert tokenizer.encode("ab<x>b<y>").ids == [2, 3, 1, 4]
    added = tokenizer.get_added_tokens_decoder()
    assert {index: token.special for index, token in added.items()} == {3: True, 4: False}


def test_other_files():
    files = frontend_files(TINY | {"tokenizer.ggml.eot_token_id": 3})
    assert json.loads(files["tokenizer_config.json"]) == {"bos_token": "a", "eos_token": "b"}
    assert json.loads(files["generation_config.json"]) == {"eos_token_id": [1, 3]}
    assert files["chat_template.jinja"] == b"hello"


@pytest.mark.parametrize(
    ("key", "value"), [("model", "llama"), ("pre", "llama-bpe"), ("pre", None)]
)
def test_other_tokenizers_are_refused(key, value):
    with pytest.raises(UnsupportedError, match=rf"{key} is {value!r}; supported: "):
        frontend_files(TINY | {f"tokenizer.ggml.{key}": value})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("tokens", None, "'tokens' must be"), ("merges", "a b", "'merges' must be"),
        ("token_type", [1, 1, 1, 3, "x"], "'token_type' must be"),
        ("tokens", ["a", "a", "ab", "<x>", "<y>"], "repeated"),
        ("token_type", [1], "one type each"),
        ("merges", ["ab"], "merge 'ab'"), ("merges", ["b a"], "merge 'b a'"),
        ("eos_token_id", 5, "special tokens"), ("bos_token_id", -1, "special tokens"),
    ],
)
def test_an_unsound_vocabulary_is_refused(key, value, why):
    with pytest.raises(ArtifactError, match=why):
        frontend_files(TINY | {f"tokenizer.ggml.{key}": value})
