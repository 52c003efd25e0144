"""Codex itself against the server: no part of the default tests, because it is large.

    npm install --prefix DIR @openai/codex
    CODEX=DIR/node_modules/.bin/codex pytest tests/plugins/serve/responses/codex_job.py
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from attrs import evolve

from ninfer_core.api import ContextLengthError, ToolCall

ROUTES = "ninfer_serve.responses.routes:routes"
CONFIG = """\
model = "tiny"
model_provider = "ninfer"
[model_providers.ninfer]
name = "NInfer"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = {idle_ms}
"""
COMMAND = json.dumps({"cmd": "echo six-times-$((6*7))"})


@pytest.fixture
def server(serve, kit):
    return serve(ROUTES, facts=evolve(kit.FACTS, max_context=1 << 20), heartbeat_s=0.3)


@pytest.fixture
def codex(server, tmp_path):
    """``(*arguments)``: what ``codex exec`` tells as JSON events, and how it ends."""
    executable = os.environ.get("CODEX")
    if not executable:
        pytest.skip("CODEX does not name the command")
    project, settings = tmp_path / "project", tmp_path / "home" / ".codex"
    project.mkdir()
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(CONFIG.format(url=server.url, idle_ms=1500))

    def run(*arguments):
        done = subprocess.run(
            [executable, "exec", "--json", "--skip-git-repo-check",
             "--dangerously-bypass-approvals-and-sandbox", *arguments],
            check=False, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}, timeout=120,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        return events, done.returncode

    return run


def messages(events):
    items = [each["item"] for each in events if each["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def is_beginning(one, other):
    return other[:len(one)] == one


def test_a_tool_is_called_and_the_next_turn_goes_on(server, codex, kit):
    """Also over silences longer than its patience."""
    call = ToolCall(0, "exec_command", COMMAND)
    server.engine.script = [
        kit.reply(2.5, ("reasoning", "I compute."), "I ask.", call),
        kit.reply(("reasoning", "Hm."), "It is 42.", cached=64),
        kit.reply("As before.", cached=128),
    ]
    events, code = codex("What is six times seven?")
    assert code == 0 and messages(events) == ["I ask.", "It is 42."]
    usage = events[-1]["usage"]
    assert usage["cached_input_tokens"] == 64
    [thread] = [each["thread_id"] for each in events if each["type"] == "thread.started"]
    events, code = codex("resume", thread, "Again?")
    assert code == 0 and messages(events) == ["As before."]
    asked, told, again = (request.prompt for request in server.engine.requests)
    assert "six-times-42" in told.text and "I compute." in told.text
    assert "web_search" not in asked.text and "multi_agent" in asked.text
    assert is_beginning(asked.token_ids, told.token_ids)
    assert is_beginning(told.token_ids, again.token_ids)


def test_a_tool_of_a_namespace_is_called(server, codex, kit):
    agent = ToolCall(0, "multi_agent_v1__close_agent", '{"target": "nobody"}')
    server.engine.script = [kit.reply(agent), kit.reply("None there.")]
    events, code = codex("Close the agent.")
    assert code == 0 and messages(events) == ["None there."]
    told = server.engine.requests[1].prompt.text
    assert "<function=multi_agent_v1__close_agent>" in told
    assert "unsupported call" not in told


def test_a_failure_is_told(server, codex, kit):
    server.engine.script = kit.reply("Hel", reason="error",
                                     cause=ContextLengthError("prompt is too long"))
    events, code = codex("Hello")
    assert code != 0
    assert "context window" in json.dumps(events)
