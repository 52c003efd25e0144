"""From a checkpoint to a published artifact, with a pack of three parameters."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from ninfer_convert.conversion import convert, convert_checkpoint
from ninfer_convert.safetensors_tensor import SafetensorsTensor
from ninfer_convert.source import open_source
from ninfer_core.api import (
    ArtifactError,
    ImportedParameter,
    ImportPlan,
    ParameterSpec,
    StorageChoice,
)
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights

A, B, C = (torch.randn(n, 40, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 4))
TENSORS = {"a": A, "b": B, "c": C}


class SmallPack:
    """``text/a`` and ``text/b`` are rows of one object; ``text/d`` is ``text/c`` again."""

    def configure(self, model):
        return model.config["width"]

    def parameters(self, width):
        shapes = {"a": (3, width), "b": (5, width), "c": (4, width)}
        specs = [ParameterSpec(f"text/{name}", shape) for name, shape in shapes.items()]
        return (*specs, ParameterSpec("text/d", (4, width), tied_to="text/c"))

    def import_source(self, source):
        width = source.description.config["width"]
        return ImportPlan(
            components={"text": {"config": {"architectures": ["Small"], "width": width}}},
            parameters=tuple(
                self._import(spec, source) for spec in self.parameters(width) if not spec.tied_to
            ),
            resources={"tokenizer.json": b"{}"}, ignored={}, recipe=(StorageChoice("*"),),
        )

    def _import(self, spec, source):
        tensor = source.tensors[spec.name.removeprefix("text/")]
        parent = "" if spec.name == "text/c" else "text/ab"
        return ImportedParameter(
            spec, (tensor.name,), tensor.dense, tensor.parts, tensor.format, parent
        )


@pytest.fixture
def checkpoint(write_directory):
    def write(**changes):
        tensors = {name: t for name, t in (TENSORS | changes).items() if t is not None}
        return write_directory({"model.safetensors": tensors}, None, width=40)

    return write


@pytest.fixture
def run(plugins, tmp_path):
    def run_convert(source, **options):
        path = tmp_path / "out.ninfer"
        report = convert(source, path, pack=SmallPack(), registry=plugins.registry, **options)
        return path, report

    return run_convert


def load(path, plugins):
    registry = plugins.registry
    return load_weights(
        open_artifact(path), formats={name: each.spec for name, each in registry.formats.items()},
        layouts={name: each.spec for name, each in registry.layouts.items()},
    )


def test_every_parameter_comes_back(checkpoint, run, plugins):
    path, report = run(checkpoint())
    weights = load(path, plugins)
    for name, values in (*TENSORS.items(), ("d", C)):
        assert torch.equal(weights.tensor(f"text/{name}"), values), name
    assert (report.tensors, report.nbytes) == (3, 12 * 40 * 4)


def test_rows_of_one_parent_are_one_view(checkpoint, run, plugins):
    path, _ = run(checkpoint())
    artifact, weights = open_artifact(path), load(path, plugins)
    stacked = weights.weight("text/a", "text/b")
    assert [each.id for each, _, _ in artifact.parts("text/b")] == ["text/ab"]
    assert stacked.planes["codes"].data_ptr() == weights.weight("text/a").planes["codes"].data_ptr()
    assert torch.equal(stacked.dense(), torch.cat([A, B]))


def test_catalogue_describes_the_model(checkpoint, run):
    artifact = open_artifact(run(checkpoint())[0])
    assert artifact.description().config["width"] == 40
    assert artifact.resources() == {"tokenizer.json": b"{}"}
    assert artifact.provenance == {"source": "checkpoint"}


def test_name_and_file_limit(checkpoint, plugins, tmp_path):
    path = tmp_path / "named.ninfer"
    convert_checkpoint(
        open_source(checkpoint()), path, pack=SmallPack(),
        registry=plugins.registry, name="Small", max_file_bytes=8192,
    )
    artifact = open_artifact(path)
    assert artifact.metadata == {"name": "Small"}
    assert all(each.stat().st_size <= 8192 for each in tmp_path.glob("named.ninfer*"))
    assert torch.equal(load(path, plugins).tensor("text/b"), B)


def test_progress_ends_at_the_total(checkpoint, run):
    seen = []
    run(checkpoint(), progress=lambda *event: seen.append(event))
    assert seen[-1][1] == seen[-1][2] > 0
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_one_image_is_held_at_a_time(checkpoint, run, monkeypatch):
    """Tensors are read while their object is written, not before."""
    read = []
    original = SafetensorsTensor.dense
    monkeypatch.setattr(
        SafetensorsTensor, "dense", lambda self: read.append(self.name) or original(self)
    )
    run(checkpoint(), progress=lambda phase, done, total: read.append(done))
    assert [event for event in read if isinstance(event, str)] == ["a", "b", "c"]
    assert read.index("c") > read.index("b") + 1


def test_a_recipe_replaces_the_default(checkpoint, run, plugins):
    path, report = run(checkpoint(), recipe=[StorageChoice("*", "bf16")])
    assert report.formats.keys() == {"bf16"}
    assert torch.equal(load(path, plugins).tensor("text/a"), A.bfloat16().float())


def test_an_existing_file_is_not_replaced(checkpoint, run, tmp_path):
    (tmp_path / "out.ninfer").write_text("mine")
    with pytest.raises(ArtifactError, match=r"out\.ninfer"):
        run(checkpoint())
    assert (tmp_path / "out.ninfer").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "lacks a tensor.*'a'"),
        ({"a": A[:2]}, "consumed more than once: a"),
        ({"z": A.clone()}, "no place in the model: z"),
        ({"c": C.to(torch.int8)}, r"\[c\]: it is I8"),
        ({"c": C.T.contiguous()}, r"shape \[text/c\]: \[40, 4\], the model wants \[4, 40\]"),
    ],
)
def test_after_an_error_nothing_is_left(checkpoint, run, tmp_path, change, message):
    with pytest.raises(ArtifactError, match=message):
        run(checkpoint(**change))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_report_says_what_was_kept(checkpoint, run):
    _, report = run(checkpoint(c=C.bfloat16()))
    assert [line.split() for line in str(report).splitlines()] == [
        ["3", "tensors", "->", "2", "objects,", "1,600", "bytes"],
        ["FORMAT", "OBJECTS", "AS", "IN", "THE", "CHECKPOINT", "BYTES"],
        ["fp32", "1", "1", "1,280"], ["bf16", "1", "1", "320"],
    ]


def test_a_checkpoint_without_a_tokenizer_is_warned_of(checkpoint, tmp_path, plugins, caplog):
    source, registry = checkpoint(), plugins.registry
    convert(source, tmp_path / "with.ninfer", pack=SmallPack(), registry=registry)
    assert not caplog.records
    bare = SmallPack()
    bare.import_source = lambda source: evolve(SmallPack().import_source(source), resources={})
    convert(source, tmp_path / "bare.ninfer", pack=bare, registry=registry)
    assert "no tokenizer.json" in caplog.text and (tmp_path / "bare.ninfer").exists()
