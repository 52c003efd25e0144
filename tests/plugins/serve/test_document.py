"""What the OpenAPI document says of the whole server is so."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from ninfer_serve.plugin import ninfer_protocols

ROUTES = [spec.routes.path for spec in ninfer_protocols()]
ELSEWHERE = {"/v1/chat/completions", "/v1/completions", "/v1/models/{name}", "/tokenize",
             "/detokenize"}
"""In the tests of their dialect."""
CHECKED = [
    schemathesis.checks.not_a_server_error, schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance, schemathesis.checks.response_schema_conformance,
]


@pytest.fixture
def app(make_app):
    return make_app(*ROUTES).app


def test_every_route_says_what_it_is_and_answers(app):
    with TestClient(app) as client:
        paths = client.get("/schema/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert operation["summary"] != "", (method, path)
            assert operation["responses"], (method, path)


def test_every_answer_is_described(app):
    schema = schemathesis.openapi.from_asgi("/schema/openapi.json", app)
    for operation in (each.ok() for each in schema.get_all_operations()):
        if operation.path not in ELSEWHERE:
            probe(operation)


def probe(operation):
    """Some requests of the described kind, and others."""
    kinds = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data):
        case = data.draw(operation.as_strategy(data.draw(st.sampled_from(kinds))))
        case.call_and_validate(checks=CHECKED)

    run()


def test_what_a_client_without_a_key_is_told_is_described(make_app, kit):
    made = make_app(*ROUTES, app=kit.AppOptions(api_keys=("k",)))
    made.engine.state = "stalled"
    with TestClient(made.app) as client:
        document = client.get("/schema/openapi.json", headers={"x-api-key": "k"}).json()
        answers = {
            (method, path): client.request(method, path).status_code
            for path, operations in document["paths"].items() for method in operations
        }
    opened = {place for place, status in answers.items() if status != 401}
    assert opened == {("get", "/"), ("head", "/"), ("get", "/health"), ("head", "/health")}
    assert answers["get", "/health"] == 503
    for (method, path), status in answers.items():
        assert str(status) in document["paths"][path][method]["responses"], (method, path)
