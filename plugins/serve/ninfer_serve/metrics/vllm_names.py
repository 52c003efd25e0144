"""The names under which vLLM has the same metrics: routers and inference gateways read these."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from ninfer_serve.metrics.exposition import Family, Sample, labels_of

_NAMES: Mapping[str, Sequence[str]] = {
    "requests_running": ["num_requests_running"],
    "requests_waiting": ["num_requests_waiting"],
    "kv_usage_ratio": ["kv_cache_usage_perc", "gpu_cache_usage_perc"],
    "cache_config_info": ["cache_config_info"],
    "preemptions_total": ["num_preemptions_total"],
    "prompt_tokens_total": [
        "prompt_tokens_total", "prefix_cache_queries_total", "gpu_prefix_cache_queries_total"],
    "prompt_tokens_cached_total": ["prefix_cache_hits_total", "gpu_prefix_cache_hits_total"],
    "prefix_cache_hit_ratio": ["gpu_prefix_cache_hit_rate"],
    "generation_tokens_total": ["generation_tokens_total"],
    "spec_decode_rounds_total": ["spec_decode_num_drafts_total"],
    "spec_decode_draft_tokens_total": ["spec_decode_num_draft_tokens_total"],
    "spec_decode_accepted_tokens_total": ["spec_decode_num_accepted_tokens_total"],
    "spec_decode_accepted_at_position_total": [
        "spec_decode_num_accepted_tokens_per_pos_total"],
    "time_to_first_token_seconds": ["time_to_first_token_seconds"],
    "request_duration_seconds": ["e2e_request_latency_seconds"],
    "request_queue_seconds": ["request_queue_time_seconds"],
    "request_prefill_seconds": ["request_prefill_time_seconds"],
    "request_decode_seconds": ["request_decode_time_seconds"],
    "time_per_output_token_seconds": ["request_time_per_output_token_seconds"],
    "request_prompt_tokens": ["request_prompt_tokens"],
    "request_generation_tokens": ["request_generation_tokens"],
}


def vllm_families(families: Sequence[Family], model: str) -> Iterator[Family]:
    """Those of them that vLLM has, too, with its labels, and what gateways expect besides."""
    labels = labels_of({"engine": 0, "model_name": model})
    for family in families:
        for name in _NAMES.get(family.name.removeprefix("ninfer_"), ()):
            yield evolve(family, name=f"vllm:{name}",
                         samples=[_labelled(labels, sample) for sample in family.samples])
    none = labels_of({"max_lora": 0, "running_lora_adapters": "", "waiting_lora_adapters": ""})
    yield Family("vllm:lora_requests_info", "There are no adapters", "gauge",
                 [Sample(time.time(), none)])


def _labelled(labels: str, sample: Sample) -> Sample:
    more = f",{sample.labels}" if sample.labels else ""
    return Sample(sample.value, labels + more, sample.suffix)
