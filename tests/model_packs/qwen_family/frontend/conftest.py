"""Frontends over templates that behave as Qwen's, and a small tokenizer with their tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ninfer_fixtures.conversation import small_tokenizer
from ninfer_qwen_family.frontend import QwenFrontend

DATA = Path(__file__).parent / "data"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
         "</think>"]
CORPUS = ["system user assistant # Tools <function= <parameter= \n\n 東京 é the name of it\n"] * 4
GENERATION = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "do_sample": True}


@pytest.fixture(scope="session")
def hf_tokenizer() -> Tokenizer:
    return small_tokenizer(SPECIAL, PLAIN, CORPUS)


@pytest.fixture(scope="session")
def make_frontend(hf_tokenizer):
    """``(template, **changes of the generation config) -> QwenFrontend``."""

    def make(template: str, **changes) -> QwenFrontend:
        ends = [hf_tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]
        generation = {"eos_token_id": ends, **GENERATION, **changes}
        return QwenFrontend({
            "tokenizer.json": hf_tokenizer.to_str().encode(),
            "chat_template.jinja": template.encode(),
            "generation_config.json": json.dumps(generation).encode(),
        })

    return make


@pytest.fixture(scope="session")
def qwen36(make_frontend) -> QwenFrontend:
    return make_frontend((DATA / "qwen3_6.jinja").read_text())


@pytest.fixture(scope="session")
def qwen38(make_frontend) -> QwenFrontend:
    return make_frontend((DATA / "qwen3_8.jinja").read_text())


@pytest.fixture(params=["qwen36", "qwen38"])
def frontend(request) -> QwenFrontend:
    """Each of the two."""
    return request.getfixturevalue(request.param)
