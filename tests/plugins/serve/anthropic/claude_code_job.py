"""Claude Code itself against the server: no part of the default tests, because it is large.

    npm install --prefix DIR @anthropic-ai/claude-code
    CLAUDE_CODE=DIR/node_modules/.bin/claude pytest tests/plugins/serve/anthropic/claude_code_job.py

With a server that runs and has room for 30,000 tokens, also ``NINFER_SERVER=http://HOST:PORT``.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from attrs import evolve

from ninfer_core.api import RequestError, ToolCall

ROUTES = "ninfer_serve.anthropic.routes:routes"
COMMAND = json.dumps({"command": "echo six-times-$((6*7))", "description": "Echo"})


@pytest.fixture
def server(serve, kit):
    return serve(ROUTES, facts=evolve(kit.FACTS, max_context=1 << 20), heartbeat_s=0.2)


@pytest.fixture
def claude(tmp_path):
    """``(url, prompt, *options)``: what the command prints, as JSON."""
    executable = os.environ.get("CLAUDE_CODE")
    if not executable:
        pytest.skip("CLAUDE_CODE does not name the command")
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_MODEL": "local", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64",
    }

    def run(url, prompt, *options):
        done = subprocess.run(
            [executable, "-p", prompt, "--output-format", "json", *options], check=False,
            env={**environment, "ANTHROPIC_BASE_URL": url}, cwd=tmp_path / "project",
            capture_output=True, text=True, timeout=300,
        )
        return json.loads(done.stdout)

    return run


def is_beginning(one, other):
    return other[:len(one)] == one


def test_a_tool_is_called_and_the_next_turn_goes_on(server, claude, kit):
    def slow(request):
        yield 0.5  # pings come before the answer begins
        yield from kit.reply(
            ("reasoning", "I compute."), "I ask.", 0.5, ToolCall(0, "Bash", COMMAND))(request)

    server.engine.script = [
        slow, kit.reply(("reasoning", "Hm."), "It is 42."), kit.reply("As before.", cached=64),
    ]
    first = claude(server.url, "What is six times seven?", "--allowedTools", "Bash")
    assert (first["result"], first["is_error"], first["num_turns"]) == ("It is 42.", False, 2)
    second = claude(server.url, "Again?", "--continue")
    assert second["result"] == "As before."
    assert second["usage"]["cache_read_input_tokens"] == 64
    asked, told, again = (request.prompt for request in server.engine.requests)
    assert "six-times-42" in told.text
    assert is_beginning(asked.token_ids, told.token_ids)
    assert is_beginning(told.token_ids, again.token_ids)
    assert asked.reasoning_open
    assert "billing" not in asked.text
    assert asked.text.index("What is six times") < asked.text.rindex("<|im_start|>system")


def test_a_failure_is_told(server, claude, kit):
    server.engine.script = kit.reply("Hel", reason="error", cause=RequestError("no way on"))
    told = claude(server.url, "Hello")
    assert told["is_error"]
    assert "no way on" in told["result"]


def test_a_server_that_runs_reuses_what_it_has_read(claude):
    """Whatever its model says; each turn may be cut off and asked for again."""
    url = os.environ.get("NINFER_SERVER")
    if not url:
        pytest.skip("NINFER_SERVER does not name a server")
    claude(url, "Say one word.", "--tools", "Bash,Read")
    usage = claude(url, "Say another.", "--continue", "--tools", "Bash,Read")["usage"]
    assert usage["cache_read_input_tokens"] > 10 * usage["input_tokens"] > 0
