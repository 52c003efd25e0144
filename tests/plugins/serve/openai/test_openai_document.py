"""What the OpenAPI document says of these routes."""

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from ninfer_serve.openai import schemas

ROUTES = ("ninfer_serve.openai.routes:routes", "ninfer_serve.tokens:routes")
POSTS = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi", "echo": True, "logprobs": 1}, "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [70]},
}


@pytest.fixture
def document(make_app):
    with TestClient(make_app(*ROUTES).app) as client:
        return client.get("/schema/openapi.json").json()


@pytest.mark.parametrize("path", POSTS)
def test_bodies_answers_and_failures_are_described(document, path):
    operation = document["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert POSTS[path].keys() <= body["properties"].keys()
    assert operation["summary"] and "$ref" not in str(operation["requestBody"])
    assert {"200", "400", "401", "413", "429", "500", "503", "504"} <= operation["responses"].keys()
    streams = "text/event-stream" in operation["responses"]["200"]["content"]
    assert streams == path.endswith("completions")


@pytest.mark.parametrize("path, kind", [
    ("/v1/models", schemas.ModelList), ("/v1/models/tiny", schemas.Model),
    ("/v1/chat/completions", schemas.ChatCompletion), ("/v1/completions", schemas.Completion),
    ("/tokenize", schemas.Tokens), ("/detokenize", schemas.Text),
])
def test_answers_are_what_is_described(make_app, path, kind):
    with TestClient(make_app(*ROUTES).app) as client:
        body = POSTS.get(path)
        response = client.post(path, json=body) if body else client.get(path)
    decoded = msgspec.json.decode(response.content, type=kind)
    assert msgspec.to_builtins(decoded) == response.json()


CHECKED = [
    schemathesis.checks.not_a_server_error, schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance, schemathesis.checks.response_schema_conformance,
]


def operation(make_app, path):
    schema = schemathesis.openapi.from_asgi("/schema/openapi.json", make_app(*ROUTES).app)
    [found] = [each.ok() for each in schema.get_all_operations() if each.ok().path == path]
    return found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_are_what_is_described(make_app, path):
    case = operation(make_app, path).Case(
        body={**POSTS[path], "stream": True}, media_type="application/json")
    answer = case.call_and_validate(checks=CHECKED)
    assert answer.headers["content-type"][0].startswith("text/event-stream")


@pytest.mark.parametrize("path", [*POSTS, "/v1/models/{name}"])
def test_no_body_is_answered_otherwise(make_app, path):
    """Bodies of the described kind, and others."""
    posted = operation(make_app, path)
    kinds = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        case = data.draw(posted.as_strategy(data.draw(st.sampled_from(kinds))))
        case.call_and_validate(checks=CHECKED)

    run()
