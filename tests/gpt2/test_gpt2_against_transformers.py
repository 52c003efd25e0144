"""A random GPT-2 checkpoint, through converter and pack, against transformers."""

from __future__ import annotations

import re

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from ninfer_conformance.lab import Lab, reference_kernels
from ninfer_conformance.subject import find_subject
from ninfer_convert.cli import main as convert
from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights
from ninfer_core.cli.main import main as ninfer
from ninfer_core.plugin_host import PluginSelection, choose_profile, kernels_of, load_plugins
from ninfer_fixtures.tiny import tiny_resources
from ninfer_pack_gpt2.config import configure

PLUGIN = "ninfer_pack_gpt2.plugin"
PROMPT = "Once upon a time, in a land without rotary positions, "


@pytest.fixture(scope="module")
def oracle():
    """Norms, biases, positions and epsilon are all large enough to matter."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=300, n_positions=512, n_embd=64, n_head=4, n_layer=3, layer_norm_epsilon=0.1,
        bos_token_id=299, eos_token_id=299,
    )).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=float("ln_" in name and name.endswith("weight")), std=0.3)
    return model


@pytest.fixture
def converted(oracle, tmp_path):
    """``(change) -> path`` of an artifact, converted after a change of the checkpoint's tensors."""

    def converted(change=lambda tensors: tensors):
        checkpoint, path = tmp_path / "hf", tmp_path / "model.ninfer"
        oracle.save_pretrained(checkpoint)
        tensors = change(load_file(checkpoint / "model.safetensors"))
        save_file(tensors, checkpoint / "model.safetensors")
        (checkpoint / "tokenizer.json").write_bytes(tiny_resources()["tokenizer.json"])
        assert convert([str(checkpoint), "--out", str(path), "-p", PLUGIN]) == 0
        return path

    return converted


@pytest.mark.parametrize("machine", ["reference", "cpu"])
def test_logits(machine, converted, oracle):
    report, artifact = load_plugins(PluginSelection(modules=(PLUGIN,))), open_artifact(converted())
    registry = report.registry
    subject = evolve(find_subject(report, "gpt2"), model=artifact.description())
    profile = kernels_of(registry, choose_profile(report, "cpu").provenance)
    weights = load_weights(
        artifact, formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
    )
    lab = Lab(subject, profile if machine == "cpu" else reference_kernels(subject), weights)
    tokens = lab.tokens(200)
    with torch.inference_mode():
        [expected] = oracle(torch.tensor([tokens])).logits
    error = (lab.fresh(tokens) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def as_published(tensors):
    """On the hub the names have no prefix, and causal masks are among the tensors."""
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 512, 512).tril() for layer in range(3)}
    return {name.removeprefix("transformer."): each for name, each in tensors.items()} | masks


def test_greedy_continuation(converted, oracle, capsys):
    model = (str(converted(as_published)), "-p", PLUGIN, "--profile", "cpu", "--kv-dtype", "fp32")
    options = ("--prompt", PROMPT, "--max-tokens", "100", "--greedy", "--print-token-ids")
    assert ninfer([*model, *options]) == 0
    [ids] = re.findall(r"^generated ids:(.*)$", capsys.readouterr().err, re.MULTILINE)
    prompt = torch.tensor([list(PROMPT.encode())])  # bytes are tokens
    [expected] = oracle.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=100, do_sample=False
    ).tolist()
    answer = [int(each) for each in ids.split()]
    assert answer == expected[prompt.shape[1] :]
    assert len(answer) == 100 and len(set(answer)) > 10


@pytest.mark.parametrize("key, value", [
    ("activation_function", "relu"), ("add_cross_attention", True), ("n_head", None),
    ("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False),
    ("tie_word_embeddings", False),
])
def test_other_variants_are_refused_by_name(key, value, oracle):
    config = oracle.config.to_dict()
    assert configure(ModelDescription("huggingface", (), config)).n_inner == 256
    with pytest.raises(ArtifactError, match=key):
        configure(ModelDescription("huggingface", (), config | {key: value}))
