"""The whole command on a tiny model, against one step for every target."""

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.engine.load import load_model
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_perplexity.windows import windows

WINDOWS = "--context", "96", "--stride", "40"


@pytest.fixture
def naive_losses(skeletons, tiny_model):
    """``(text, context, stride)``: the loss of each target, from the one row of logits of a step
    that reads all tokens before it, by the definition."""
    modules = skeletons["model-pack"], skeletons["hardware-profile"]
    plugins = load_plugins(PluginSelection(modules=modules, names=()))
    config = LaunchConfig(model=str(tiny_model), max_context=256, profile="skeleton_profile")
    plan = resolve(config, plugins)
    loaded = load_model(plan)
    builder = BatchBuilder(max_rows=1, max_tokens=plan.max_tokens, max_logits=1, max_pages=4)

    def loss(tokens, target):
        state = loaded.store.open()
        loaded.store.grow(state, len(tokens))
        loss.calls += 1
        logits = loaded.model.forward(builder.fill([Row(loss.calls, state, 0, tokens, 1)]))[0]
        loaded.store.close(state)
        shares = np.exp(logits[: loaded.vocab_size].double().numpy())
        return -math.log(shares[target] / shares.sum())

    loss.calls = 0

    @torch.inference_mode()
    def losses(text, context, stride):
        ids = loaded.frontend.tokenizer.encode(text)
        return [
            loss(ids[window.begin : target], ids[target])
            for window in windows(len(ids), context, stride)
            for target in range(window.first, window.end)
        ]

    return losses


@pytest.mark.parametrize("context, stride", [(96, 40), (64, 63), (200, 1), (2, 1), (300, 150)])
def test_losses_are_those_of_the_definition(context, stride, text, measure, naive_losses):
    report = measure("--text", text, "--context", context, "--stride", stride)
    expected = naive_losses(text.read_text("utf-8"), context, stride)
    [result] = report["texts"]
    assert report["overall"]["targets"] == len(expected) == result["tokens"] - 1
    assert report["overall"]["nll"] == pytest.approx(sum(expected) / len(expected), rel=1e-6)
    assert report["overall"]["perplexity"] == math.exp(report["overall"]["nll"])
    for window in result["windows"]:
        losses = expected[window["first"] - 1 : window["end"] - 1]
        assert window["nll"] == pytest.approx(sum(losses), rel=1e-6)


def test_steps_of_any_size_give_the_same(text, measure, monkeypatch):
    reports = [measure("--text", text, *WINDOWS, output="one")]
    monkeypatch.setattr("ninfer_perplexity.command.STEP_LOGITS", 5)
    monkeypatch.setattr("ninfer_perplexity.scorer.BLOCK_ELEMENTS", 1000)
    reports.append(measure("--text", text, *WINDOWS, "--prefill-chunk", "64", output="two"))
    assert reports[1]["settings"]["step_logits"] == 5
    first, second = (report["texts"][0]["windows"] for report in reports)
    assert [w | {"nll": pytest.approx(w["nll"], rel=1e-12)} for w in first] == second


def test_the_report(text, measure):
    report = measure("--text", text, *WINDOWS, "--kv-dtype", "bf16")
    assert report["schema"] == "ninfer-perplexity/1"
    assert report["settings"] == {
        "context": 96, "stride": 40, "vocab_size": report["settings"]["vocab_size"],
        "kv_dtype": "bf16", "profile": "skeleton_profile", "compute_dtype": "float32",
        "step_tokens": 512, "step_logits": 256,
    }
    assert report["model"]["formats"]["text/layers/*/mlp/down"] == {"fp32": 2}
    assert report["model"]["kernels"]["linear"] == ["reference.linear"]
    assert report["log_probs"] is None and report["reference"] is None
    assert report["overall"]["divergence"] is None


@pytest.fixture
def manifest(tmp_path):
    streams = []
    for index, domain in enumerate(("prose", "code", "prose")):
        (tmp_path / f"{index}.txt").write_text(f"The text with the number {index}. " * (3 + index))
        streams.append({"name": f"text {index}", "domain": domain, "path": f"{index}.txt"})
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"name": "small", "streams": streams}))
    return path


def test_a_corpus(manifest, measure):
    report = measure("--corpus", manifest, *WINDOWS)
    texts = {text["name"]: text["summary"] for text in report["texts"]}
    assert [*report["domains"]] == ["prose", "code"]
    both = [texts["text 0"], texts["text 2"]]
    targets = sum(each["targets"] for each in both)
    mean = sum(each["nll"] * each["targets"] for each in both) / targets
    assert report["domains"]["prose"]["nll"] == pytest.approx(mean)
    assert report["domains"]["code"] == texts["text 1"]
    assert report["overall"]["targets"] == sum(each["targets"] for each in texts.values())


def test_the_table_and_a_quick_run(manifest, perplexity):
    outcome = perplexity("--corpus", manifest, "--quick", *WINDOWS)
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0] == ["DOMAIN", "TEXTS", "TOKENS", "NLL", "PERPLEXITY"]
    assert [line[:2] for line in lines[1:]] == [["prose", "1"], ["code", "1"], ["overall", "2"]]
    assert "text 0: perplexity" in outcome.err


def test_a_model_does_not_diverge_from_itself(text, measure, tmp_path):
    first = measure("--text", text, *WINDOWS, "--save-logits", output="first")
    second = measure("--text", text, *WINDOWS, "--reference", tmp_path / "first", output="second")
    assert first["log_probs"] == "log_probs.safetensors"
    assert second["overall"]["nll"] == first["overall"]["nll"]
    assert abs(second["overall"]["divergence"]) < 1e-6
    assert second["overall"]["agreement"] == 1
    assert second["reference"] == str(tmp_path / "first" / "report.json")


def test_another_model_does(text, measure, perplexity, write_model, tmp_path):
    def change(values):
        return {name: value + 0.02 * torch.randn(value.shape) for name, value in values.items()}

    measure("--text", text, *WINDOWS, "--save-logits", output="first")
    reference = "--reference", tmp_path / "first" / "report.json"
    report = measure("--text", text, *WINDOWS, *reference, model=write_model(change))
    assert 1e-6 < report["overall"]["divergence"] < report["overall"]["divergence_p99"]
    assert report["overall"]["agreement"] < 1
    outcome = perplexity("--text", text, *WINDOWS, *reference)
    assert outcome.out.splitlines()[0].split()[5:] == ["KL", "MEAN", "KL", "P99", "SAME", "TOP-1"]


@pytest.mark.parametrize("arguments, why", [
    (("--context", "128", "--stride", "40"), "context is 96 there and 128 here"),
    (("--context", "96", "--stride", "41"), "stride is 40 there and 41 here"),
])
def test_a_reference_of_other_windows(arguments, why, text, measure, perplexity, tmp_path):
    measure("--text", text, *WINDOWS, "--save-logits", output="first")
    outcome = perplexity("--text", text, *arguments, "--reference", tmp_path / "first")
    assert outcome.code == 1 and why in outcome.err


def test_a_reference_of_another_text(text, measure, perplexity, tmp_path):
    measure("--text", text, *WINDOWS, "--save-logits", output="first")
    reference = "--reference", tmp_path / "first"
    other = tmp_path / "other.txt"
    other.write_text("Other words.")
    outcome = perplexity("--text", other, *WINDOWS, *reference)
    assert "texts are text.txt there and other.txt here" in outcome.err
    shutil.copy(other, text)
    outcome = perplexity("--text", text, *WINDOWS, *reference)
    assert outcome.code == 1 and "text text.txt has another content" in outcome.err


def test_a_reference_without_log_probabilities(text, measure, perplexity, tmp_path):
    measure("--text", text, *WINDOWS, output="first")
    outcome = perplexity("--text", text, *WINDOWS, "--reference", tmp_path / "first")
    assert outcome.code == 1 and "--save-logits" in outcome.err


@pytest.mark.parametrize("arguments, why", [
    (("--spec", "ngram"), "without speculation"),
    (("--stride", "96"), "--stride must be below --context"),
    (("--quick",), "--quick"),
    (("--save-logits",), "--output DIR"),
    (("--max-context", "100"), "--max-context has no meaning here"),
    (("--disk-cache", "here"), "--disk-cache has no meaning here"),
    (("--context", "100000"), "too long for the model"),
    (("--reference", "nowhere"), "cannot read the reference"),
])
def test_refusals(arguments, why, text, perplexity):
    outcome = perplexity("--text", text, *WINDOWS, *arguments)
    assert outcome.code == 1 and why in outcome.err and not outcome.out


def test_a_text_of_one_token(tmp_path, perplexity):
    (tmp_path / "t.txt").write_text("t")
    outcome = perplexity("--text", tmp_path / "t.txt", *WINDOWS)
    assert outcome.code == 1 and "a text is too short [t.txt]: 1 tokens" in outcome.err


def test_nothing_is_replaced_and_nothing_left(text, perplexity, write_model, tmp_path):
    output = "--output", tmp_path / "output"

    def broken(values):
        return {name: value * math.nan for name, value in values.items()}

    save = *output, "--save-logits"
    outcome = perplexity("--text", text, *WINDOWS, *save, model=write_model(broken))
    assert outcome.code == 1 and "a loss is not finite" in outcome.err
    assert not (tmp_path / "output").exists()
    (tmp_path / "output").mkdir()
    outcome = perplexity("--text", text, *WINDOWS, *save, model=write_model(broken))
    assert outcome.code == 1 and [*(tmp_path / "output").iterdir()] == []
    assert perplexity("--text", text, *WINDOWS, *output).code == 0
    before = (tmp_path / "output" / "report.json").read_bytes()
    outcome = perplexity("--text", text, *WINDOWS, *output)
    assert outcome.code == 1 and "never overwritten" in outcome.err
    assert (tmp_path / "output" / "report.json").read_bytes() == before


def test_it_has_a_command_of_its_own(tmp_path):
    code = "from ninfer_perplexity.cli import main; raise SystemExit(main())"

    def run(*arguments):
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert run("--help").stdout.startswith("usage: ninfer-perplexity")
    bad = run("--text", "none", "--context", "1")
    assert bad.returncode == 1 and "see 'ninfer-perplexity --help'" in bad.stderr
