"""opencode itself against the server, set up as the documents say: no part of the default tests,
because it is large.

    npm install --prefix DIR opencode-ai
    OPENCODE=DIR/node_modules/.bin/opencode pytest tests/plugins/serve/openai/opencode_job.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from attrs import evolve

from ninfer_core.api import ContextLengthError, ToolCall

ROUTES = "ninfer_serve.openai.routes:routes"
DOCUMENT = Path(__file__).parents[4] / "docs/serving.md"
COMMAND = json.dumps({"command": "echo six-times-$((6*7))", "description": "Computes"})
TITLES = "You are a title generator"


@pytest.fixture
def server(serve, kit):
    return serve(ROUTES, facts=evolve(kit.FACTS, max_context=1 << 20), heartbeat_s=0.3)


@pytest.fixture
def opencode(server, tmp_path):
    """``(*arguments)``: what ``opencode run`` tells as JSON events, and how it ends."""
    executable = os.environ.get("OPENCODE")
    if not executable:
        pytest.skip("OPENCODE does not name the command")
    project, home = tmp_path / "project", tmp_path / "home"
    settings = home / ".config/opencode/opencode.json"
    project.mkdir()
    settings.parent.mkdir(parents=True)
    [documented] = re.findall(
        r"### opencode\n.*?```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    settings.write_text(
        documented.replace("http://127.0.0.1:8080", server.url).replace("qwen3.8-27b", "tiny"))

    def run(*arguments):
        done = subprocess.run(
            [executable, "run", "--format", "json", "--auto", *arguments],
            check=False, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "OPENCODE_DISABLE_AUTOUPDATE": "1",
                 "OPENCODE_DISABLE_MODELS_FETCH": "1"}, timeout=120,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        return events, done.returncode

    return run


def play(server, kit, *scripts):
    """Give each answer its script, and every request for a title one; what was asked, but for
    these."""
    left, asked = [*scripts], []

    def script(request):
        if TITLES in request.prompt.text:
            return kit.reply("A title")(request)
        asked.append(request.prompt)
        return left.pop(0)(request)

    server.engine.script = script
    return asked


def texts(events, kind="text"):
    return [each["part"]["text"] for each in events if each["type"] == kind]


def is_beginning(one, other):
    return other[:len(one)] == one


def test_a_tool_is_called_and_the_next_turn_goes_on(server, opencode, kit):
    call = ToolCall(0, "bash", COMMAND)
    asked = play(
        server, kit,
        kit.reply(1.5, ("reasoning", "I compute."), "I ask.", call),
        kit.reply(("reasoning", "Hm."), "It is 42.", cached=64),
        kit.reply("As before.", cached=128),
    )
    events, code = opencode("--thinking", "What is six times seven?")
    assert code == 0 and texts(events) == ["I ask.", "It is 42."]
    assert texts(events, "reasoning") == ["I compute.", "Hm."]
    [used] = [each["part"]["state"] for each in events if each["type"] == "tool_use"]
    assert used["status"] == "completed" and "six-times-42" in used["output"]
    finish = [each["part"] for each in events if each["type"] == "step_finish"]
    assert [each["reason"] for each in finish] == ["tool-calls", "stop"]
    assert finish[1]["tokens"]["cache"]["read"] == 64
    events, code = opencode("--continue", "Again?")
    assert code == 0 and texts(events) == ["As before."]
    first, told, again = asked
    assert "six-times-42" in told.text and "I compute." in told.text
    assert is_beginning(first.token_ids, told.token_ids)
    assert is_beginning(told.token_ids, again.token_ids)


def test_a_failure_is_told(server, opencode, kit):
    failure = ContextLengthError("prompt is too long")
    play(server, kit, *[kit.reply("Hel", reason="error", cause=failure)] * 20)
    events, _ = opencode("Hello")
    assert "prompt is too long" in json.dumps(events)
