"""What Prometheus, routers and gateways read."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families

from ninfer_core.api import CapacityError
from ninfer_core.engine.status import EngineStatus, TokenCounts
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.state.prefix_cache import CacheStatistics
from ninfer_serve.metrics.exposition import Family, Sample, exposition, labels_of
from ninfer_serve.metrics.histogram import Histogram

ROUTES = ("ninfer_serve.openai.routes:routes", "ninfer_serve.metrics.routes:routes")
STATUS = EngineStatus(
    cycle=70, running=3, reading=2, replaying=1, waiting=5, paused=4, page_bytes=1000,
    num_pages=40, free_pages=8, sequence_pages=10, host_pages=6, free_host_pages=2, pauses=9,
    tokens=TokenCounts(prompt=200, reused=150, read=45, replayed=7, output=33),
    drafts=DraftCounts(rounds=10, drafted=30, accepted=21, accepted_at=[9, 7, 5], fallbacks=2),
    cache=CacheStatistics(captured=12, refused=1, restored={"device": 3, "host": 2, "disk": 0}),
)
ENGINE = {
    "ninfer_requests_running": 3, "ninfer_requests_waiting": 5, "ninfer_requests_paused": 4,
    "ninfer_requests_prefilling": 2, "ninfer_requests_replaying": 1,
    "ninfer_requests_decode_ready": 1, "ninfer_engine_steps_total": 70,
    "ninfer_prompt_tokens_total": 200, "ninfer_prompt_tokens_cached_total": 150,
    "ninfer_prefill_tokens_total": 45, "ninfer_replayed_tokens_total": 7,
    "ninfer_generation_tokens_total": 33, "ninfer_spec_decode_rounds_total": 10,
    "ninfer_spec_decode_draft_tokens_total": 30, "ninfer_spec_decode_accepted_tokens_total": 21,
    "ninfer_spec_decode_fallback_steps_total": 2, "ninfer_preemptions_total": 9,
    "ninfer_device_kv_used_pages": 32, "ninfer_device_kv_capacity_pages": 40,
    "ninfer_device_kv_sequence_pages": 10, "ninfer_device_state_used_slots": 3,
    "ninfer_host_context_used_bytes": 4000, "ninfer_host_context_capacity_bytes": 6000,
    "ninfer_kv_usage_ratio": 0.25, "ninfer_prefix_cache_hit_ratio": 0.75,
    'ninfer_prefix_cache_points_total{event="captured"}': 12,
    'ninfer_prefix_cache_restores_total{tier="host"}': 2,
    'ninfer_spec_decode_accepted_at_position_total{position="2"}': 5,
}
ROUTERS = {
    "vllm:num_requests_waiting": 5, "vllm:num_requests_running": 3,
    "vllm:kv_cache_usage_perc": 0.25, "vllm:gpu_cache_usage_perc": 0.25,
    "vllm:gpu_prefix_cache_hit_rate": 0.75, "vllm:gpu_prefix_cache_hits_total": 150,
    "vllm:gpu_prefix_cache_queries_total": 200, "vllm:prefix_cache_hits_total": 150,
    "vllm:prefix_cache_queries_total": 200, "vllm:generation_tokens_total": 33,
}


def read(client):
    """Value by name, with labels other than those that all names of vLLM have."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = {**sample.labels}
            if sample.name.startswith("vllm:") and "model_name" in labels:
                assert labels.pop("model_name") == "tiny" and labels.pop("engine") == "0"
            shown = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            name = f"{sample.name}{{{shown}}}" if shown else sample.name
            assert name not in found
            found[name] = sample.value
    return found


@pytest.fixture
def ask(make_app):
    """``(script, **members of the body) -> (response, metrics)`` of one server."""
    made = make_app(*ROUTES)
    with TestClient(made.app) as client:

        def run(script, **body):
            made.engine.script = script
            body = {"messages": [{"role": "user", "content": "hi"}], **body}
            return client.post("/v1/chat/completions", json=body), read(client)

        run.engine = made.engine
        yield run


def test_the_engine_is_shown_under_both_names(make_app):
    made = make_app(*ROUTES)
    made.engine.last_status = STATUS
    with TestClient(made.app) as client:
        found = read(client)
    assert {name: found.get(name) for name in ENGINE} == ENGINE
    assert {name: found.get(name) for name in ROUTERS} == ROUTERS
    labels = 'block_size="64",num_gpu_blocks="40",page_bytes="1000"'
    assert found[f"vllm:cache_config_info{{{labels}}}"] == 1
    assert found['ninfer_model_info{max_context="4096",model="tiny"}'] == 1
    assert found["ninfer_device_state_capacity_slots"] == 4


@pytest.mark.parametrize("empty", [
    {"num_pages": 0, "free_pages": 0, "sequence_pages": 0, "tokens": TokenCounts()},
    {"sequence_pages": 55, "tokens": TokenCounts(1, 2)},
])
def test_shares_are_shares(make_app, empty):
    """Without pages, and where running requests share pages."""
    made = make_app(*ROUTES)
    made.engine.last_status = evolve(STATUS, **empty)
    with TestClient(made.app) as client:
        found = read(client)
    for name in ("kv_usage", "prefix_cache_hit"):
        assert found[f"ninfer_{name}_ratio"] == (1 if empty["sequence_pages"] else 0)


def test_without_an_engine_there_are_no_figures_of_it(make_app):
    made = make_app(*ROUTES)
    made.engine.state = "restarting"
    with TestClient(made.app) as client:
        found = read(client)
    assert found["ninfer_engine_ready"] == 0
    assert not ENGINE.keys() & found.keys()


def test_requests_are_counted_and_measured(ask, kit):
    ask(kit.reply("a", "b", "c"))
    _, found = ask(kit.reply("d", reason="output-limit"))
    assert found["ninfer_engine_ready"] == 1
    assert found['ninfer_requests_total{outcome="stop-token"}'] == 1
    assert found['ninfer_requests_total{outcome="output-limit"}'] == 1
    assert found["ninfer_requests_pending"] == 0
    for ours, theirs in (
        ("time_to_first_token_seconds", "time_to_first_token_seconds"),
        ("request_duration_seconds", "e2e_request_latency_seconds"),
        ("request_queue_seconds", "request_queue_time_seconds"),
        ("time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        ("request_prompt_tokens", "request_prompt_tokens"),
    ):
        assert found[f"ninfer_{ours}_count"] == found[f"vllm:{theirs}_count"] == 2
        assert found[f'ninfer_{ours}_bucket{{le="+Inf"}}'] == 2
    assert found["ninfer_request_queue_seconds_sum"] == 0.5
    assert found['ninfer_request_queue_seconds_bucket{le="0.25"}'] == 2
    assert found['ninfer_request_queue_seconds_bucket{le="0.1"}'] == 0
    assert found["ninfer_request_generation_tokens_sum"] == 4


def test_choices_count_each_and_requests_once(ask, kit):
    _, found = ask(kit.reply("a"), n=3)
    assert found['ninfer_requests_total{outcome="stop-token"}'] == 3
    assert found["ninfer_request_duration_seconds_count"] == 1


def test_failures_and_refusals_are_told_apart(ask, kit):
    ask(kit.reply("a", reason="error", cause=CapacityError("no room")))
    ask.engine.refusal = CapacityError("too many")
    response, found = ask(kit.reply("a"))
    assert response.status_code == 429
    assert found['ninfer_requests_total{outcome="error"}'] == 1
    assert found['ninfer_requests_refused_total{code="server_overloaded"}'] == 1


def test_a_client_that_left_is_counted(serve, kit):
    server = serve(*ROUTES)
    server.engine.script = kit.reply("a", 30.0)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_raw())
    for _ in range(500):
        if 'ninfer_requests_total{outcome="left"}' in (found := read(server.client)):
            break
    assert found['ninfer_requests_total{outcome="left"}'] == 1


def test_metrics_need_a_key_if_there_are_keys(make_app, kit):
    made = make_app(*ROUTES, app=kit.AppOptions(api_keys=("k",)))
    with TestClient(made.app) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"Authorization": "Bearer k"}).status_code == 200


@given(st.lists(st.floats(0, 1e4)))
def test_buckets_count_what_is_below_them(values):
    bounds = (0.5, 1, 10)
    histogram = Histogram("h", "about", bounds)
    for value in values:
        histogram.observe(value)
    samples = {each.labels or each.suffix: each.value for each in histogram.family().samples}
    for bound, label in zip(bounds, ("0.5", "1.0", "10.0"), strict=True):
        assert samples[f'le="{label}"'] == sum(value <= bound for value in values)
    assert samples['le="+Inf"'] == samples["_count"] == len(values)
    assert samples["_sum"] == pytest.approx(sum(values))


@given(st.dictionaries(st.sampled_from("abc"), st.text()), st.floats())
def test_the_text_is_read_as_it_was_meant(labels, value):
    family = Family("x_total", "some", "counter", [Sample(value, labels_of(labels))])
    [read] = text_string_to_metric_families(exposition([family]).decode())
    [sample] = read.samples
    assert sample.labels == labels
    assert sample.value == value or (sample.value != sample.value and value != value)
