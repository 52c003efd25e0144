"""A server of the Responses API."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest


@pytest.fixture
def server(serve, kit):
    """`serve`, and ``ask(**body)``: the response; ``stream(**body)``: its events."""
    made = serve("ninfer_serve.responses.routes:routes", heartbeat_s=5.0)

    def ask(**body):
        return made.client.post("/v1/responses", json={"input": "hi", **body})

    def stream(**body):
        answer = ask(stream=True, **body)
        assert answer.status_code == 200, answer.text
        events = kit.events_of(answer.text)
        assert all(name == data["type"] for name, data in events)
        return [data for _, data in events]

    def prompt(index=-1):
        return made.engine.requests[index].prompt.text

    return SimpleNamespace(**vars(made), ask=ask, stream=stream, prompt=prompt)


@pytest.fixture
def codex_body():
    """What Codex sends in its second request: all its members, the shapes of its tools and items,
    and texts of our own."""
    parameters = {"type": "object", "properties": {"cmd": {"type": "string"}},
                  "required": ["cmd"], "additionalProperties": False}
    function = {"type": "function", "description": "It helps.", "strict": False}
    return json.loads(json.dumps({
        "model": "tiny", "stream": True, "store": False, "tool_choice": "auto",
        "parallel_tool_calls": True, "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-7a",
        "client_metadata": {"session_id": "0199-7a", "turn_id": "0199-7b"},
        "tools": [
            {**function, "name": "exec_command", "parameters": parameters},
            {"type": "custom", "name": "apply_patch", "description": "Edits files.",
             "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}},
            {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [
                {**function, "name": "close_agent", "parameters": parameters}]},
            {"type": "web_search", "external_web_access": True},
        ],
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer",
             "content": [{"type": "input_text", "text": "You are a coding agent."}]},
            {"type": "message", "id": "msg_2", "role": "developer",
             "content": [{"type": "input_text", "text": "Skills: none."}]},
            {"type": "message", "id": "msg_3", "role": "user",
             "content": [{"type": "input_text", "text": "list files"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [],
             "content": [{"type": "reasoning_text", "text": "I should look."}],
             "encrypted_content": "gAAAA"},
            {"type": "function_call", "status": "completed", "id": "fc_1", "call_id": "call_1",
             "name": "exec_command", "arguments": '{"cmd": "ls"}'},
            {"type": "function_call_output", "id": "fco_1", "call_id": "call_1",
             "output": "a.py\n"},
        ],
    }))
