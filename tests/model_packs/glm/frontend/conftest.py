"""Frontends over the pack's template and one without switches, and a small tokenizer."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from ninfer_fixtures.conversation import small_tokenizer
from ninfer_pack_glm.frontend import GlmFrontend

SPECIAL = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
           "<|observation|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
CORPUS = ["Reasoning Effort: Max # Tools utc_now \n\n 東京 é the name of it\n"] * 4
GENERATION = {"temperature": 1.0, "top_p": 0.95, "do_sample": True}


@pytest.fixture(scope="session")
def hf_tokenizer() -> Tokenizer:
    return small_tokenizer(SPECIAL, PLAIN, CORPUS)


@pytest.fixture(scope="session")
def make_frontend(hf_tokenizer):
    """``(template=None, **changes of the generation config) -> GlmFrontend``."""

    def make(template: str | None = None, **changes) -> GlmFrontend:
        generation = {"eos_token_id": hf_tokenizer.token_to_id("<|endoftext|>"), **GENERATION}
        files = {
            "tokenizer.json": hf_tokenizer.to_str().encode(),
            "generation_config.json": json.dumps({**generation, **changes}).encode(),
        }
        if template is not None:
            files["chat_template.jinja"] = template.encode()
        return GlmFrontend(files)

    return make


@pytest.fixture(scope="session")
def frontend(make_frontend) -> GlmFrontend:
    return make_frontend()
