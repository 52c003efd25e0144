"""What all dialects share at the edge: keys, limits, ids, errors, routes."""

from __future__ import annotations

import pytest
from litestar import Request, get, post

from ninfer_core.api import AmbiguityError, CapacityError, PluginError, RequestError
from ninfer_serve.service import EngineGone


def echo_routes(service):
    @post("/v1/echo", status_code=200)
    async def echo(request: Request) -> dict:
        return {"length": len(await request.body())}

    @post("/v1/messages", status_code=200)
    async def messages(request: Request) -> dict:
        await request.body()
        raise CapacityError("too many requests", why="2 of 2")

    @get("/v1/fail/{kind:str}")
    async def fail(kind: str) -> None:
        raise {
            "request": RequestError("wrong", where="messages.0", why="it is 3", fix="say 4"),
            "busy": CapacityError("busy"), "gone": EngineGone("no engine"),
            "bug": ValueError("secret"),
        }[kind]

    return [echo, messages, fail]


def other_routes(service):
    @post("/v1/echo", status_code=200)
    async def again() -> None: ...

    return [again]


def broken_routes(service):
    raise ValueError("no idea")


@pytest.fixture
def edge(serve, monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "edge_routes", sys.modules[__name__])

    def start(*names, **options):
        return serve(*(f"edge_routes:{name}" for name in names or ("echo_routes",)), **options)

    return start


def test_health_says_what_the_engine_says(edge):
    server = edge()
    assert server.client.get("/health").json() == {"status": "ok"}
    server.engine.state = "stalled"
    answer = server.client.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "stalled"}
    assert answer.headers["retry-after"] == "2"
    probed = server.client.head("/health")
    assert (probed.status_code, probed.content) == (503, b"")
    assert probed.headers["retry-after"] == "2"


def test_plugins_are_listed(edge):
    listed = edge().client.get("/v1/plugins").json()["data"]
    assert [each["provides"].get("protocols") for each in listed] == [None, ["p0"]]


@pytest.mark.parametrize("header", [
    {"Authorization": "Bearer two"}, {"authorization": "bearer one"}, {"x-api-key": "one"},
])
def test_a_key_opens(edge, kit, header):
    server = edge(app=kit.AppOptions(api_keys=("one", "two")))
    assert server.client.post("/v1/echo", content=b"abc", headers=header).json() == {"length": 3}


@pytest.mark.parametrize("header", [
    {}, {"Authorization": "Bearer one2"}, {"Authorization": "Basic one"}, {"x-api-key": ""},
    {"Authorization": "one"},
])
def test_without_a_key_nothing_opens_but_health(edge, kit, header):
    server = edge(app=kit.AppOptions(api_keys=("one",)))
    answer = server.client.post("/v1/echo", headers=header)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert server.client.get("/health", headers=header).status_code == 200
    assert server.client.get("/v1/plugins", headers=header).status_code == 401
    assert server.client.get("/schema/openapi.json", headers=header).status_code == 401


def test_bodies_are_limited_before_they_are_read(edge, kit):
    server = edge(app=kit.AppOptions(max_body_bytes=1000))
    assert server.client.post("/v1/echo", content=b"x" * 1000).status_code == 200
    for body in (b"x" * 1001, iter([b"x" * 600] * 2)):
        answer = server.client.post("/v1/echo", content=body)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"


def test_errors_have_the_shape_of_the_dialect(edge):
    client = edge().client
    answer = client.get("/v1/fail/request")
    assert answer.status_code == 400
    assert answer.json() == {"error": {
        "message": "wrong [messages.0]: it is 3 (say 4)", "type": "invalid_request_error",
        "param": "messages.0", "code": "invalid_request",
    }}
    answer = client.post("/v1/messages", json={})
    assert answer.status_code == 529
    assert answer.json() == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "too many requests: 2 of 2"},
        "request_id": answer.headers["request-id"],
    }


@pytest.mark.parametrize(("kind", "status", "retry"), [
    ("busy", 429, "1"), ("gone", 503, "2"), ("bug", 500, None),
])
def test_statuses(edge, kind, status, retry):
    answer = edge().client.get(f"/v1/fail/{kind}")
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry)
    assert "secret" not in answer.text


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/nothing", 404), ("DELETE", "/v1/echo", 405), ("GET", "/v1/messages", 405),
])
def test_what_is_not_there(edge, method, path, status):
    answer = edge().client.request(method, path)
    assert answer.status_code == status
    assert ("type" in answer.json()) == (path == "/v1/messages")
    assert answer.headers["x-request-id"] == answer.headers["request-id"]


def test_a_plain_request_id_is_kept(edge):
    client = edge().client
    for given, kept in (("abc-1.2_3", True), ("a b", False), ("x" * 129, False)):
        answer = client.get("/health", headers={"x-request-id": given})
        assert (answer.headers["x-request-id"] == given) == kept
    first, second = (client.get("/health").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_pages_of_allowed_origins_may_call(edge, kit):
    app = kit.AppOptions(cors_origins=("http://a.example",), api_keys=("k",))
    client = edge(app=app).client
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    for origin, allowed in (("http://a.example", True), ("http://b.example", False)):
        preflight = client.options("/v1/echo", headers={"Origin": origin, **ask})
        assert (preflight.status_code < 300) == allowed
        answer = client.post("/v1/echo", headers={"Origin": origin})
        assert answer.status_code == 401
        assert ("access-control-allow-origin" in answer.headers) == allowed


@pytest.mark.parametrize(("name", "allowed"), [
    ("127.0.0.1:8080", True), ("[::1]:80", True), ("localhost:1", True), ("box.local", True),
    ("host.docker.internal", True), ("box", True), ("page.example:80", True), ("", True),
    ("evil.example", False), ("evil.example.", False), ("127.0.0.1.evil.example", False),
    ("localhost.evil.example:80", False), ("[bad", False), ("a.page.example", False),
])
def test_a_server_of_this_machine_answers_by_no_name_that_a_stranger_may_own(
    edge, kit, name, allowed
):
    app = kit.AppOptions(is_private=True, cors_origins=("https://page.example",))
    client = edge(app=app).client
    for path in ("/health", "/v1/plugins"):
        answer = client.get(path, headers={"Host": name})
        assert answer.status_code == (200 if allowed else 403), answer.text
    if not allowed:
        assert answer.json()["error"]["code"] == "host_not_allowed"
        assert "--api-key" in answer.json()["error"]["message"]


def test_other_servers_answer_by_any_name(edge, kit):
    for app in (kit.AppOptions(), kit.AppOptions(is_private=True, cors_origins=("*",))):
        client = edge(app=app).client
        assert client.get("/health", headers={"Host": "any.example"}).status_code == 200


def test_two_protocols_of_one_path_are_an_error(edge):
    with pytest.raises(AmbiguityError, match="POST /v1/echo"):
        edge("echo_routes", "other_routes")


def test_a_broken_protocol_is_named(edge):
    with pytest.raises(PluginError, match="tests 1"):
        edge("broken_routes")
