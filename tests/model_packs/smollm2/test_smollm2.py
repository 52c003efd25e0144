"""SmolLM2 itself, converted from its GGUF file, against transformers with the same file in fp32.

`data/make_oracle.py` recorded what transformers computes, because loading the model there and
decoding with it takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch

from ninfer_convert.conversion import convert
from ninfer_core.api import SamplingParams
from ninfer_core.artifact.container import open_artifact
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.resolve import resolve
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import Finished, GenerationRequest
from ninfer_pack_smollm2.embedded import locate
from ninfer_pack_smollm2.pack import LlamaPack

ORACLE = json.loads((Path(__file__).parent / "data" / "oracle.json").read_text())
READING = ORACLE["reading"]

STAYING = {
    "text/layers/17/attention/value": "blk.17.attn_v.weight",
    "text/layers/17/attention/output": "blk.17.attn_output.weight",
    "text/layers/17/mlp/down": "blk.17.ffn_down.weight",
    "text/layers/17/post_attention_norm": "blk.17.ffn_norm.weight",
}
MOVED = (
    ("text/layers/17/attention/query", "blk.17.attn_q.weight", 9),
    ("text/layers/17/attention/key", "blk.17.attn_k.weight", 3),
)


@pytest.fixture(scope="module")
def artifact(plugins, tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2") / "model.ninfer"
    report = convert(locate(), path, pack=LlamaPack(), registry=plugins.registry)
    assert all(stored.kept == stored.objects for stored in report.formats.values())
    assert report.formats.keys() == {"q8_g32_fp16", "q4_1_g32_fp16", "fp32"}
    return path


@pytest.fixture(scope="module")
def frontend(artifact):
    opened, pack = open_artifact(artifact), LlamaPack()
    return pack.frontend(pack.configure(opened.description()), opened.resources())


@pytest.fixture(scope="module")
def engine(artifact, plugins):
    """As `ninfer` would run it on this CPU, eight at once."""
    config = LaunchConfig(model=str(artifact), profile="cpu", max_context=256, max_concurrency=8)
    return load_engine(resolve(config, plugins))


@pytest.fixture(scope="module")
def logits(artifact, read):
    """Of the recorded text, on the CPU profile's kernels."""
    return read(artifact, profile=True).logits(READING["tokens"])


def test_largest_logits_are_those_of_transformers(logits):
    expected = torch.tensor(READING["largest"])
    actual = logits.gather(1, torch.tensor(READING["largest_ids"]))
    assert (actual - expected).abs().max() < 1e-3
    assert torch.equal(logits.argmax(1), torch.tensor(READING["largest_ids"])[:, 0])


def test_other_logits_are_those_of_transformers(logits):
    actual = logits[:, READING["fixed_ids"]]
    assert (actual - torch.tensor(READING["fixed"])).abs().max() < 1e-3


def test_greedy_answers_are_those_of_transformers(engine):
    assert min(case["margin"] for case in ORACLE["answers"]) > 5e-3, "no choice is a near tie"
    with EngineClient(engine.engine) as client:
        generations = [client.submit(request_of(engine, case)) for case in ORACLE["answers"]]
        ends = [[event for event in each if isinstance(event, Finished)] for each in generations]
    for case, [end] in zip(ORACLE["answers"], ends, strict=True):
        assert list(end.token_ids) == case["answer"], case["prompt"]


def request_of(engine, case):
    """The prompt through the frontend, whose ids must be those of transformers too."""
    prompt = engine.frontend.prepare([{"role": "user", "content": case["prompt"]}])
    assert list(prompt.token_ids) == case["ids"]
    return GenerationRequest(
        prompt, SamplingParams(), max_tokens=len(case["answer"]), ignore_eos=True
    )


@pytest.mark.parametrize("case", ORACLE["tokens"], ids=lambda case: repr(case["text"][:20]))
def test_token_ids_are_those_of_transformers(frontend, case):
    assert frontend.tokenizer.encode(case["text"]) == case["ids"]


def test_answers_end_at_the_end_of_a_turn(frontend):
    ends = frontend.tokenizer.encode("<|im_end|>", special=True)
    assert frontend.eos_token_ids == set(ends)


def test_weights_are_those_of_the_reference_library(artifact, load):
    """Bit for bit; rows of q and k come back from GGUF's order, neighbours to halves."""
    weights = load(artifact)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(locate()).tensors}
    for ours, theirs in STAYING.items():
        assert torch.equal(weights.tensor(ours), dense(tensors[theirs])), ours
    for ours, theirs, heads in MOVED:
        halves = dense(tensors[theirs]).view(heads, 32, 2, 576).transpose(1, 2).reshape(-1, 576)
        assert torch.equal(weights.tensor(ours), halves), ours


def dense(tensor):
    return torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
