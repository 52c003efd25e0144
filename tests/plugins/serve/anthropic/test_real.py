"""The official SDK against a whole server with a tiny Qwen of random weights: only the server can
make its answers valid."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import anthropic
import pytest
from attrs import evolve

from ninfer_conformance.subject import find_subject
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.tiny import TinyModel, tiny_resources

TEMPLATE = Path(__file__).parents[3] / "model_packs/qwen_family/frontend/data/qwen3_8.jinja"
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
PLUGINS = ("ninfer_pack_qwen_dense", "ninfer_profile_cpu", "ninfer_constraints", "ninfer_serve")
TOOL = {"name": "set_lamp", "description": "Sets it.", "input_schema": {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
    "additionalProperties": False}}
ASKED = {"model": "any", "max_tokens": 48, "system": "You help with lamps. " * 8,
         "messages": [{"role": "user", "content": "Is the lamp on?"}]}


def frontend_files():
    """Those of the byte-level tokenizer, with Qwen's tags and template; and how many tokens."""
    files = tiny_resources()
    spec = json.loads(files["tokenizer.json"])
    first = 1 + max([*spec["model"]["vocab"].values(), *(t["id"] for t in spec["added_tokens"])])
    spec["added_tokens"] += [
        {**spec["added_tokens"][0], "id": index, "content": tag}
        for index, tag in enumerate(TAGS, first)
    ]
    files["tokenizer.json"] = json.dumps(spec).encode()
    files["chat_template.jinja"] = TEMPLATE.read_bytes()
    return files, first + len(TAGS)


def with_vocabulary(config, size):
    if isinstance(config, dict):
        made = {name: with_vocabulary(each, size) for name, each in config.items()}
        return made | ({"vocab_size": size} if "vocab_size" in made else {})
    return config


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    report = load_plugins(PluginSelection(modules=("ninfer_pack_qwen_dense.plugin",), names=()))
    subject = find_subject(report, "qwen_dense")
    files, size = frontend_files()
    tiny = evolve(
        subject.model, config=with_vocabulary(dict(subject.model.config), size),
        components=with_vocabulary(dict(subject.model.components), size),
    )
    pack = subject.implementation
    made = TinyModel(tiny, pack.parameters(pack.configure(tiny)), report.registry)
    path = tmp_path_factory.mktemp("qwen") / "tiny.ninfer"
    made.write(path, made.random_values(), texts=files)
    return path


@pytest.fixture(scope="module")
def url(model):
    """Of a server on the model."""
    words = [word for name in PLUGINS for word in ("--plugin", f"{name}.plugin")]
    log = model.with_name("log")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ninfer_serve.cli", "--port", "0", "--model", str(model),
             "--max-context", "4096", "--max-concurrency", "2", "--temperature", "0.7", *words],
            stderr=stderr, env={**os.environ, "NINFER_PLUGINS": ""},
        )
    end = time.monotonic() + 60
    while not (found := re.search(r"serving .* (http\S+)", log.read_text())):
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    yield found[1]
    process.terminate()
    process.wait(30)


@pytest.fixture
def client(url):
    with anthropic.Anthropic(
        base_url=url, api_key="any", max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def test_messages_counts_and_reuse(client):
    counted = client.messages.count_tokens(
        **{name: each for name, each in ASKED.items() if name != "max_tokens"}).input_tokens
    first = client.messages.create(**ASKED).usage
    assert first.input_tokens == counted
    assert 0 < first.output_tokens <= 48
    again = client.messages.create(**ASKED).usage
    assert again.input_tokens + again.cache_read_input_tokens == counted
    assert again.cache_read_input_tokens > counted / 2


def test_a_stream_of_thinking(client):
    with client.messages.stream(**ASKED, thinking={"type": "adaptive"}) as stream:
        message = stream.get_final_message()
    assert message.content[0].type == "thinking"
    assert message.content[0].signature
    assert message.usage.output_tokens_details.thinking_tokens > 0


def test_a_tool_that_must_be_called_is_called_and_answered(client):
    choice = {"type": "tool", "name": "set_lamp", "disable_parallel_tool_use": True}
    asked = {**ASKED, "tools": [{**TOOL, "strict": True}], "max_tokens": 200}
    message = client.messages.create(**asked, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "set_lamp"
    assert call.input in ({"on": True}, {"on": False})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    asked["messages"] = [
        *ASKED["messages"], {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(**asked, tool_choice={"type": "none"})
    assert all(block.type == "text" for block in after.content)
    assert after.usage.cache_read_input_tokens > message.usage.input_tokens / 2


def test_an_answer_of_a_schema(client):
    schema = {"type": "object", "properties": {"lamp": {"enum": ["on", "off"]}},
              "required": ["lamp"], "additionalProperties": False}
    message = client.messages.create(
        **{**ASKED, "max_tokens": 200},
        output_config={"format": {"type": "json_schema", "schema": schema}})
    assert message.stop_reason == "end_turn"
    assert json.loads(message.content[0].text)["lamp"] in ("on", "off")
