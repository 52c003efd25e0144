"""Responses that are gone on from, and read again."""

from __future__ import annotations

from ninfer_core.api import ToolCall
from ninfer_serve.service import StoreLimits

ADD = {"type": "function", "name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}


def test_the_next_turn_goes_on_from_the_last(server, kit):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hello", ToolCall(0, "add", "{}"))
    first = server.ask(input="one", instructions="Be brief", tools=[ADD]).json()
    call = first["output"][2]["call_id"]
    server.engine.script = kit.reply("Two")
    second = server.ask(
        previous_response_id=first["id"], tools=[ADD],
        input=[{"type": "function_call_output", "call_id": call, "output": "42"}]).json()
    assert second["previous_response_id"] == first["id"]
    text = server.prompt()
    assert text.index("one") < text.index("hm") < text.index("Hello") < text.index("42")
    assert "Be brief" not in text  # instructions are of one turn
    server.ask(previous_response_id=second["id"], input="three")
    assert server.prompt().index("42") < server.prompt().index("Two")


def test_it_is_there_when_the_last_event_is(server):
    last = server.stream()[-1]["response"]
    assert server.client.get(f"/v1/responses/{last['id']}").json() == last


def test_without_store_there_is_nothing_to_go_on_from(server):
    first = server.ask(store=False).json()
    assert first["store"] is False
    assert server.client.get(f"/v1/responses/{first['id']}").status_code == 404
    answer = server.ask(previous_response_id=first["id"])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400, "previous_response_not_found", "previous_response_id")


def test_it_can_be_read_and_forgotten(server):
    made = server.ask().json()
    path = f"/v1/responses/{made['id']}"
    assert server.client.get(path).json() == made
    assert server.client.delete(path).json() == {
        "id": made["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        answer = server.client.request(method, path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "response_not_found"
    assert server.client.get(f"{path}/input_items").status_code == 404


def test_input_items_come_in_pages(server):
    first = server.ask(input=[{"role": "user", "content": str(i)} for i in range(3)]).json()
    second = server.ask(previous_response_id=first["id"], input="last").json()
    path = f"/v1/responses/{second['id']}/input_items"

    def texts(**params):
        page = server.client.get(path, params=params).json()
        return [each["content"][0]["text"] for each in page["data"]], page

    assert texts(order="asc")[0] == ["0", "1", "2", "Hello", "last"]
    found, page = texts(limit=2)
    assert found == ["last", "Hello"] and page["has_more"] is True
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    found, page = texts(limit=3, after=page["last_id"])
    assert found == ["2", "1", "0"] and page["has_more"] is False
    for params in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"},
                   {"after": "nobody"}):
        assert server.client.get(path, params=params).status_code == 400, params


def test_items_can_be_referred_to(server):
    first = server.ask().json()
    server.ask(input=[{"role": "user", "content": "what did you say?"},
                      {"type": "item_reference", "id": first["output"][0]["id"]}])
    assert "Hello" in server.prompt()


def test_whether_reasoning_stays_is_inherited(server, kit):
    server.engine.script = kit.reply(("reasoning", "hm"), "Hello")
    first = server.ask(reasoning={"context": "current_turn"}).json()
    second = server.ask(previous_response_id=first["id"]).json()
    assert "hm" not in server.prompt()
    server.ask(previous_response_id=second["id"], reasoning={"context": "all_turns"})
    assert "hm" in server.prompt()


def test_what_the_store_cannot_hold_says_so(serve):
    for limits in (StoreLimits(max_records=0), StoreLimits(max_bytes=500)):
        made = serve("ninfer_serve.responses.routes:routes", store_limits=limits)
        found = made.client.post("/v1/responses", json={"input": "hi"}).json()
        assert found["store"] is False
        assert made.client.get(f"/v1/responses/{found['id']}").status_code == 404


def test_what_the_store_could_never_hold_is_refused_before_it_is_read(serve):
    made = serve("ninfer_serve.responses.routes:routes", store_limits=StoreLimits(max_bytes=500))
    body = {"input": "x" * 600}
    answer = made.client.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "response_store_capacity_exceeded"
    assert made.client.post("/v1/responses", json={**body, "store": False}).status_code == 200
