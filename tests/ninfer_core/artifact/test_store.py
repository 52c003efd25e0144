"""Loading: what is a view and what a copy, and what is refused before anything is read."""

from __future__ import annotations

import gc
import re
import sys
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, CapacityError, PluginError
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import load_weights

GROUPED = ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"]
ROW_FORMATS = ["fp32", "bf16", "fp8_e4m3fn_row_bf16", *GROUPED]


def pointers(weight) -> dict[str, int]:
    return {name: plane.data_ptr() for name, plane in weight.planes.items()}


def test_planes_on_a_cpu_are_views_of_the_file(loaded, formats, layouts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = loaded({"w": torch.randn(6, 130), "v": torch.randn(5)})
    assert store.report.nbytes == store.report.mapped_bytes == 6 * 130 * 4 + 20
    assert store.weight("w") is store.weight("w")
    again = load_weights(store.artifact, formats=formats, layouts=layouts)
    assert pointers(again.weight("w")) == pointers(store.weight("w"))


def test_views_survive_the_store_and_the_artifact(loaded):
    values = torch.randn(6, 130)
    weight = loaded({"w": values}).weight("w")
    assert torch.equal(weight.dense(), values)


def test_dense_tensors_are_writable_copies(loaded):
    store = loaded({"w": torch.zeros(4)})
    store.tensor("w").add_(1)
    assert not store.tensor("w").any()


@given(
    limit=st.integers(8192, 40_000), rows=st.integers(1, 40),
    names=st.lists(st.sampled_from(ROW_FORMATS), min_size=1, max_size=4), seed=st.integers(0, 99),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_split_into_files_gives_the_same_weights(
    tmp_path_factory, write, codec, formats, layouts, limit, rows, names, seed
):
    torch.manual_seed(seed)
    tensors = {f"w{i}": (torch.randn(rows, 130 + i), name) for i, name in enumerate(names)}
    path = write(
        tmp_path_factory.mktemp("s") / "m.ninfer", tensors, max_file_bytes=limit,
        resources={"odd": b"x" * (seed + 1)},
    )
    assert all(file.stat().st_size <= limit for file in path.parent.iterdir())
    store = load_weights(open_artifact(path), formats=formats, layouts=layouts)
    for name, (values, format_name) in tensors.items():
        stored = codec(format_name).quantize(values)
        assert torch.equal(store.tensor(name), codec(format_name).dequantize(stored))
    assert open_artifact(path).resource("odd") == b"x" * (seed + 1)


@pytest.fixture
def straddling(tmp_path, write, formats, layouts):
    """Load two tensors, the second in three files."""
    tensors = {"a": torch.arange(1000.0), "b": torch.arange(5000.0)}
    path = write(tmp_path / "m.ninfer", tensors, max_file_bytes=12_288)

    def load():
        store = load_weights(open_artifact(path), formats=formats, layouts=layouts)
        assert store.report.nbytes == 24_000
        assert torch.equal(store.tensor("a"), tensors["a"])
        assert torch.equal(store.tensor("b"), tensors["b"])
        return store

    return load


@pytest.mark.skipif(sys.platform != "linux", reason="maps files twice")
def test_objects_that_straddle_files_are_views_of_them(straddling):
    store = straddling()
    assert store.report.mapped_bytes == 24_000
    table = store.weight("b").planes["codes"]
    del store
    gc.collect()
    assert torch.equal(table, torch.arange(5000.0))


def test_where_they_cannot_be_they_are_copied(straddling, monkeypatch):
    monkeypatch.setattr("sys.platform", "plan9")
    assert straddling().report.mapped_bytes == 4_000
    monkeypatch.undo()
    monkeypatch.setattr("ninfer_core.artifact.mapping._map_again", lambda *_: False)
    assert straddling().report.mapped_bytes == 4_000


def test_the_budget_is_checked_before_a_byte_is_read(opened, formats, layouts, monkeypatch):
    artifact = opened({"a": torch.ones(100), "b": torch.ones(50)})
    load_weights(artifact, formats=formats, layouts=layouts, budget_bytes=600)
    monkeypatch.setattr(type(artifact.shards), "read", lambda *_: pytest.fail("read"))
    with pytest.raises(CapacityError, match="600 bytes of a budget of 599"):
        load_weights(artifact, formats=formats, layouts=layouts, budget_bytes=599)


def test_what_stays_on_the_host_is_beside_the_budget(opened, formats, layouts):
    artifact = opened({"table": torch.ones(1000, 10), "b": torch.ones(50)})
    load = partial(load_weights, artifact, formats=formats, layouts=layouts, on_host=["table"])
    store = load(budget_bytes=200)
    assert store.report.mapped_bytes >= 40_000
    assert store.weight("table").planes["codes"].device.type == "cpu"
    with pytest.raises(CapacityError, match="200 bytes of a budget of 199"):
        load(budget_bytes=199)
    assert load(device="meta").weight("table").planes["codes"].is_meta


@pytest.mark.skipif(sys.platform != "linux", reason="has no such advice")
def test_of_what_stays_on_the_host_only_touched_pages_are_read(opened, formats, layouts):
    artifact = opened({"table": torch.ones(1000, 10), "b": torch.ones(50)})
    store = load_weights(artifact, formats=formats, layouts=layouts, on_host=["table"])
    address = store.weight("table").planes["codes"].data_ptr() + 8192
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    for before, flags in pairwise(maps):
        span = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ", before, re.MULTILINE)[-1]
        if int(span[0], 16) <= address < int(span[1], 16):
            assert "rr" in flags.splitlines()[0].split()
            break
    else:
        pytest.fail("the table is mapped nowhere")


def test_only_what_is_selected_is_loaded(opened, formats, layouts):
    artifact = opened({"a": torch.ones(100), "b": torch.ones(50)})
    store = load_weights(
        artifact, formats=formats, layouts=layouts, select=["b"], budget_bytes=200
    )
    assert store.report.nbytes == 200
    with pytest.raises(ArtifactError, match="not selected"):
        store.weight("a")
    with pytest.raises(ArtifactError, match="no parameter"):
        load_weights(artifact, formats=formats, layouts=layouts, select=["c"])


def test_a_weight_of_nothing_is_a_fault_of_the_model(loaded):
    with pytest.raises(PluginError, match="weight of no parameters"):
        loaded({"w": torch.zeros(4)}).weight()


def test_without_memory_there_is_all_but_the_values_and_no_file_is_touched(
    opened, formats, layouts, monkeypatch
):
    artifact = opened({"a": torch.ones(4, 25), "b": (torch.ones(2, 64), "q4_g64_fp16")})
    monkeypatch.setattr("ninfer_core.artifact.container.Shards.read", pytest.fail)
    store = load_weights(artifact, formats=formats, layouts=layouts, device="meta")
    assert store.weight("a").info.shape == (4, 25)
    assert all(plane.is_meta for plane in store.weight("b").planes.values())
    assert store.report.nbytes == artifact.nbytes and not store.report.mapped_bytes


def test_shared_objects_count_once(opened, formats, layouts):
    artifact = opened({"w": torch.ones(4, 25)}, bind={"head": [("w", (0, 100))]})
    seen = []
    store = load_weights(
        artifact, formats=formats, layouts=layouts, progress=lambda *step: seen.append(step)
    )
    assert seen == [("weights", 400, 400)]
    assert pointers(store.weight("head")) == pointers(store.weight("w"))


def test_progress_ends_at_the_total(opened, formats, layouts):
    artifact, seen = opened({"a": torch.ones(100), "b": torch.ones(50)}), []
    load_weights(artifact, formats=formats, layouts=layouts, progress=lambda *s: seen.append(s))
    assert seen == [("weights", 400, 600), ("weights", 600, 600)]


def test_unknown_formats_matter_only_when_interpreted(opened, formats, layouts):
    artifact = opened({"a": torch.ones(4), "b": (torch.ones(2, 64), "q4_g64_fp16")})
    fewer = {name: spec for name, spec in formats.items() if name != "q4_g64_fp16"}
    load_weights(artifact, formats=fewer, layouts=layouts, select=["a"])
    with pytest.raises(ArtifactError, match="unknown q4_g64_fp16"):
        load_weights(artifact, formats=fewer, layouts=layouts)
    with pytest.raises(ArtifactError, match="unknown contiguous_le_v1"):
        load_weights(artifact, formats=formats, layouts={}, select=["a"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 12}, "12 bytes at offset 0; it needs 16"), ({"shape": (5,)}, "it needs 20"),
        ({"format": "bf16"}, "it needs 8"), ({"format": "q4_g64_fp16"}, "does not hold format"),
        ({"layout": "row_scale_v1"}, "does not hold format"),
        ({"offset": 128}, "multiple of 256"),
    ],
)
def test_lies_about_an_object_are_refused(opened, formats, layouts, change, message):
    artifact = opened({"a": torch.ones(4), "b": torch.ones(400)})
    artifact = evolve(artifact, objects={"a": evolve(artifact.objects["a"], **change)})
    with pytest.raises(ArtifactError, match=message):
        load_weights(artifact, formats=formats, layouts=layouts, select=["a"])


@pytest.mark.parametrize("shape", [(), (2,), (2, 64, 1)])
def test_a_shape_that_a_layout_cannot_hold_is_refused_with_its_object(
    opened, formats, layouts, shape
):
    artifact = opened({"a": (torch.ones(2, 64), "q4_g64_fp16")})
    artifact = evolve(artifact, objects={"a": evolve(artifact.objects["a"], shape=shape)})
    with pytest.raises(ArtifactError, match=r"m\.ninfer: object a\].*cannot hold"):
        load_weights(artifact, formats=formats, layouts=layouts)


def test_other_devices_get_copies(opened, formats, layouts):
    values = torch.randn(4, 130)
    artifact = opened({"w": (values, "q5_g64_fp16")})
    store = load_weights(artifact, formats=formats, layouts=layouts, device="meta")
    assert store.report.mapped_bytes == 0
    assert {plane.device.type for plane in store.weight("w").planes.values()} == {"meta"}
