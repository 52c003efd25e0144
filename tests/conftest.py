"""What tests of several parts share: skeletons of plugins, a tiny model, the command on them."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():  # read when Triton is imported, which any test may be first to do
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import settings

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_conformance.subject import find_subject
from ninfer_core.cli import plugins as command_plugins
from ninfer_core.cli.main import LASTING_OBJECTS, main
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.state.step import StepBatch
from ninfer_fixtures import ops
from ninfer_fixtures.tiny import tiny_resources
from ninfer_workbench.new import write_skeleton

gc.set_threshold(LASTING_OBJECTS)  # as the commands do
settings.register_profile("ninfer", deadline=None)  # a busy machine is no fault of the code
settings.register_profile("soak", deadline=None, max_examples=3000, stateful_step_count=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ninfer"))

SKELETONS = {
    "model-pack": ("skeleton-pack", "ninfer_pack_skeleton_pack"),
    "hardware-profile": ("skeleton_profile", "ninfer_profile_skeleton_profile"),
    "plugin": ("skeleton_plugin", "ninfer_plugin_skeleton_plugin"),
}
"""Kind -> name and import package."""


@pytest.fixture(autouse=True)
def end_of_process():
    """A command sets up the log and keeps plugins for its process; here they end with the test."""
    loggers = [logging.getLogger(), logging.getLogger("ninfer_core")]
    levels = [logger.level for logger in loggers]
    command_plugins._load.cache_clear()
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    root = loggers[0]
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)  # its stream ends with the test; pytest's are of other types


@pytest.fixture(scope="session")
def skeletons(tmp_path_factory) -> dict[str, str]:
    """A skeleton of each kind, importable: kind -> plugin module."""
    folder = tmp_path_factory.mktemp("skeletons")
    with pytest.MonkeyPatch.context() as patch:
        for kind in SKELETONS:
            patch.syspath_prepend(write_skeleton(kind, SKELETONS[kind][0], folder))
        yield {kind: f"{package}.plugin" for kind, (_, package) in SKELETONS.items()}


@pytest.fixture(scope="session")
def write_model(skeletons, tmp_path_factory):
    """``(change) -> path`` of a tiny random model of the skeleton pack, with its values changed."""
    subject = find_subject(
        load_plugins(PluginSelection(modules=(skeletons["model-pack"],), names=())), "skeleton_pack"
    )
    generator = torch.Generator().manual_seed(7)
    values = {
        spec.name: torch.randn(spec.shape, generator=generator) / spec.shape[-1] ** 0.5
        for spec in subject.implementation.parameters(subject.config)
    }

    def write(change=lambda values: values):
        path = tmp_path_factory.mktemp("model") / "tiny.ninfer"
        config = {"config": subject.model.config}
        with ArtifactWriter(path, components={"text": config}) as writer:
            for role, content in tiny_resources().items():
                writer.add_resource(role, content)
            for name, each in change(values).items():
                image = each.flatten().view(torch.uint8)
                writer.add_tensor(name, each.shape, "fp32", "contiguous_le_v1", image)
                writer.bind(name, name)
        return path

    return write


@pytest.fixture(scope="session")
def tiny_model(write_model) -> Path:
    return write_model()


@pytest.fixture
def ninfer(skeletons, monkeypatch, capsys):
    """``(*arguments) -> (exit code, stdout, stderr)`` with the skeleton pack and profile alone."""
    monkeypatch.setenv("NINFER_PLUGINS", "")
    modules = (skeletons["model-pack"], skeletons["hardware-profile"], "ninfer_workbench.plugin",
               "ninfer_drafting.plugin")
    plugins = [word for module in modules for word in ("-p", module)]

    def ninfer(*arguments):
        code = main([*map(str, arguments), *plugins, "--profile", "skeleton_profile"])
        return code, *capsys.readouterr()

    return ninfer


def _step_batch(*rows, pages=None, rope_positions=None):
    counts = [row[2] for row in rows]
    sizes = {"max_tokens": sum(counts) + 3, "max_rows": len(rows) + 1}
    batch = StepBatch.allocate(**sizes, max_pages=16, max_logits=1)
    batch.num_rows, batch.num_tokens = len(rows), sum(counts)
    batch.page_table[:] = -1
    start = 0
    for index, (slot, begin, count, replay, certain) in enumerate(rows):
        part, places = slice(start, start + count), torch.arange(begin, begin + count)
        batch.positions[part] = places
        source = torch.arange(4096).expand(3, 4096) if rope_positions is None else rope_positions
        batch.rope_positions[:, part] = source[:, begin : begin + count]
        batch.token_row[part] = index
        start += count
        batch.row_start[index + 1] = start
        own = pages[slot] if pages else [3 * i + slot for i in range(4)]
        batch.page_table[index, : len(own)] = torch.tensor(own, dtype=torch.int32)
        batch.slots[index], batch.replay[index], batch.certain[index] = slot, replay, certain
    return batch


@pytest.fixture(scope="session")
def step_batch():
    """``(*rows, pages, rope_positions) -> StepBatch`` of rows of (slot, position of the first
    token, tokens, replayed tokens, whether certain).

    ``pages`` by slot, else those of slot 1 to 3 are ``slot, slot + 3, ...``, four each;
    ``rope_positions`` int64 ``[3, N]`` by position, else the positions.
    """
    return _step_batch


@pytest.fixture(scope="session")
def drive():
    """``(call, inputs, steps, **facts) -> outputs``: one sequence, step by step, on slot 1.

    ``call(*inputs, batch)`` runs a step; a step is (tokens, accepted), accepted None for a certain
    one. Rejected tokens come as noise; those committed give the outputs. The facts go to
    `step_batch`.
    """

    def drive(call, inputs, steps, **facts):
        outputs, start, replay = [], 0, 0
        noise = torch.Generator().manual_seed(99)
        for count, accepted in steps:
            kept = count if accepted is None else accepted
            parts = [torch.randn(count, x.shape[1], generator=noise).to(x.dtype) for x in inputs]
            for part, x in zip(parts, inputs, strict=True):
                part[:kept] = x[start : start + kept]
            batch = _step_batch((1, start, count, replay, accepted is None), **facts)
            outputs.append(call(*parts, batch)[:kept].clone())
            start, replay = start + kept, 0 if accepted is None else kept
        return torch.cat(outputs)

    return drive


@pytest.fixture(scope="session")
def slot_batch():
    """``(*rows) -> StepBatch`` of rows of (slot, tokens, replayed tokens, whether certain)."""
    return lambda *rows: _step_batch(*[(slot, 0, *rest) for slot, *rest in rows])


@pytest.fixture(scope="session")
def make_weight():
    """See `ninfer_fixtures.ops.make_weight`."""
    return ops.make_weight


@pytest.fixture(scope="session")
def make_request():
    """See `ninfer_fixtures.ops.make_request`."""
    return ops.make_request


@pytest.fixture(params=ops.STEPS)
def steps(request):
    """For `drive`: ways through 40 tokens."""
    return ops.STEPS[request.param]
