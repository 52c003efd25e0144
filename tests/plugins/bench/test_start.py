"""From files with random weights to answers."""

import pytest
import torch

from ninfer_bench.start import OnDevice
from ninfer_bench.written import read_through, write_random
from ninfer_core.artifact.container import open_artifact
from ninfer_core.plugin_host import PluginSelection, load_plugins


@pytest.fixture
def registry():
    return load_plugins(PluginSelection(names=())).registry


@pytest.mark.parametrize("memory, code", [(10**9, 0), (10**5, 1)])
def test_a_start_is_measured(ninfer, tiny_model, tmp_path, memory, code):
    path = tmp_path / "random.ninfer"
    arguments = ["bench", "start", tiny_model, "--weights", path, "--prompt-tokens", "70",
                 "--output-tokens", "5", "--memory", memory, "--json", "-p", "ninfer_bench.plugin"]
    found_code, out, err = ninfer(*map(str, arguments))
    assert bool(found_code) == bool(code) and path.exists() == (not code)
    if code:
        assert "the model does not fit in memory" in err and "--memory" in err
    else:
        assert '"output_tokens": 5' in out and '"prompt_tokens": 70' in out


def test_a_prompt_that_is_too_long_is_refused_before_weights_are_written(
    ninfer, tiny_model, tmp_path
):
    code, _, err = ninfer(
        "bench", "start", str(tiny_model), "--weights", str(tmp_path / "random.ninfer"),
        "--prompt-tokens", "64", "--max-context", "64", "-p", "ninfer_bench.plugin")
    assert code and "--prompt-tokens" in err and "raise --max-context" in err
    assert not [*tmp_path.iterdir()]


def test_what_is_written_has_the_catalogue_it_was_made_from(tiny_model, tmp_path, registry):
    source, path = open_artifact(tiny_model), tmp_path / "random.ninfer"
    write_random(source, path, registry, "cpu", lambda *step: None)
    read_through(path)
    made = open_artifact(path)
    tensors = {id: each for id, each in source.objects.items() if each.kind == "tensor"}
    for id, each in tensors.items():
        twin = made.objects[id]
        assert (twin.shape, twin.format, twin.layout) == (each.shape, each.format, each.layout)
    assert made.bindings == source.bindings and made.uses == source.uses
    assert {n: c.config for n, c in made.components.items()} == {
        n: c.config for n, c in source.components.items()}
    assert torch.frombuffer(made.shards.read(0, 4096)[0], dtype=torch.uint8).any()


def test_a_cycle_of_the_device_is_the_models_step_the_predictors_and_what_is_between(monkeypatch):
    class At(float):
        def elapsed_time(self, end):
            return end - self

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    marks = [(who, At(begin), At(end)) for who, begin, end in (
        ("prompt", 0, 5), ("model", 10, 16), ("drafts", 17, 19), ("model", 19, 27))]
    found = OnDevice.of(marks, "model")
    assert found == OnDevice(pytest.approx(0.007), pytest.approx(0.001), pytest.approx(0.0005))
    assert OnDevice.of(marks[:1], "model") == OnDevice()
