"""What Codex sends and reads."""

from __future__ import annotations

import pytest

from ninfer_core.api import ToolCall
from ninfer_serve.responses.items import unsealed


def test_its_second_request(server, kit, codex_body):
    server.engine.script = kit.reply(("reasoning", "so"), "Done.",
                                     ToolCall(0, "agents__close_agent", '{"cmd": "x"}'))
    answer = server.client.post("/v1/responses", json=codex_body)
    assert answer.status_code == 200
    events = [data for _, data in kit.events_of(answer.text)]
    thought, said, called = events[-1]["response"]["output"]
    assert unsealed(thought["encrypted_content"]) == "so"
    assert said["content"][0]["text"] == "Done."
    assert (called["namespace"], called["name"]) == ("agents", "close_agent")


def test_its_history_is_rendered_in_order(server, codex_body):
    server.client.post("/v1/responses", json=codex_body)
    text = server.prompt()
    places = [text.index(each) for each in (
        "exec_command", "apply_patch", "agents__close_agent", "You are a coding agent.",
        "Skills: none.", "list files", "I should look.", "<function=exec_command>", "a.py")]
    assert places == sorted(places)
    assert "web_search" not in text


def test_what_it_sends_back_is_what_it_was_given(server, kit, codex_body):
    """The second turn begins with the tokens of the first, answer included."""
    server.engine.script = kit.reply(
        ("reasoning", "so"), ToolCall(0, "exec_command", '{"cmd": "ls"}'))
    codex_body["input"] = codex_body["input"][:3]
    answer = server.client.post("/v1/responses", json=codex_body)
    output = kit.events_of(answer.text)[-1][1]["response"]["output"]
    before = server.prompt()
    codex_body["input"] += [*output, {
        "type": "function_call_output", "id": "fco_9", "call_id": output[1]["call_id"],
        "output": "a.py"}]
    server.client.post("/v1/responses", json=codex_body)
    assert server.prompt().startswith(
        before + "so\n</think>\n\n<tool_call>\n<function=exec_command>")


@pytest.mark.parametrize("kind", ["web_search_call", "compaction", "local_shell_call"])
def test_items_that_cannot_be_read_are_refused_and_not_lost(server, codex_body, kind):
    """Bug 74."""
    codex_body["input"].append({"type": kind, "id": "x"})
    answer = server.client.post("/v1/responses", json=codex_body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[6].type"
