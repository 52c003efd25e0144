"""Weights that are laid out anew while they are loaded: the same numbers, and only where it can."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from ninfer_core.api import LayoutSpec, ParameterSpec
from ninfer_core.artifact import relay as module
from ninfer_core.artifact.layouts.planar import PlanarLayout, require_shape
from ninfer_core.artifact.relay import Relay, relays
from ninfer_core.artifact.store import load_weights


class TiledLayout(PlanarLayout):
    """q8 in tiles of 8 rows, columns first."""

    def geometry(self, format_name, shape):
        require_shape(shape[0] % 8 == 0, "tiled", shape, "whole tiles")
        tiles = shape[0] // 8
        return (("codes", torch.int8, (tiles, shape[1], 8)),
                ("scales", torch.float16, (tiles, shape[1] // 32, 8)))

    def store(self, format_name, parts):
        return {name: part.unflatten(0, (-1, 8)).transpose(1, 2) for name, part in parts.items()}

    def unpack(self, format_name, shape, planes):
        return {name: plane.transpose(1, 2).flatten(0, 1) for name, plane in planes.items()}


FORMAT = "q8_g32_fp16"
TILED = LayoutSpec("tiled", (FORMAT,), "here:TiledLayout")


@pytest.fixture
def known(layouts, monkeypatch):
    here = ModuleType("here")
    here.TiledLayout = TiledLayout
    monkeypatch.setitem(sys.modules, "here", here)
    return {**layouts, "tiled": TILED}


@pytest.fixture
def load(formats, known):
    def load(artifact, relay=None, **options):
        return load_weights(artifact, formats=formats, layouts=known, relay=relay, **options)

    return load


def test_a_weight_means_the_same_and_so_do_rows_of_it(opened, load, monkeypatch):
    values = torch.randn(272, 64)
    artifact = opened(
        {"w": (values, FORMAT)},
        bind={"low": [("w", (0, 64 * 8))], "rest": [("w", (64 * 8, 64 * 272))]})
    monkeypatch.setattr(module, "RUN_ELEMENTS", 128 * 64)  # three runs of its rows
    plain, anew = load(artifact), load(artifact, {"w": "tiled"})
    assert anew.weight("w").info.layout == "tiled" != plain.weight("w").info.layout
    assert anew.weight("w").planes["codes"].shape == (34, 64, 8)
    for name in ("w", "low", "rest"):
        assert torch.equal(anew.weight(name).dense(), plain.weight(name).dense())
    assert torch.equal(anew.weight("rest", "low").dense(), plain.weight("rest", "low").dense())
    report = anew.report
    assert report.relaid_bytes == report.nbytes and plain.report.relaid_bytes == 0


def test_neighbours_in_different_layouts_are_no_one_weight(opened, load):
    """As where one of them is no whole tiles."""
    values = {name: torch.randn(rows, 64) for name, rows in (("a", 16), ("b", 3), ("c", 5))}
    artifact = opened({name: (each, FORMAT) for name, each in values.items()})
    runs = load(artifact, {"a": "tiled"}).weight_runs("a", "b", "c")
    assert [run.info.shape[0] for run in runs] == [16, 8]
    plain = load(artifact).weight("a", "b", "c")
    assert torch.equal(torch.cat([run.dense() for run in runs]), plain.dense())


def test_without_memory_only_shapes_are(opened, load):
    store = load(opened({"w": (torch.randn(16, 64), FORMAT)}), {"w": "tiled"}, device="meta")
    assert store.weight("w").planes["scales"].shape == (2, 2, 8)


def test_all_lie_in_one_piece_and_pass_through_another(opened, load):
    artifact = opened({name: (torch.randn(rows, 64), FORMAT) for name, rows in
                       (("a", 16), ("b", 24), ("c", 8))})
    store = load(artifact, {"a": "tiled", "c": "tiled", "gone": "tiled"})
    begins = {name: store.weight(name).planes["codes"].data_ptr() for name in "abc"}
    whole = store.weight("a").planes["codes"].untyped_storage()
    assert store.weight("c").planes["codes"].untyped_storage().data_ptr() == whole.data_ptr()
    assert store.weight("b").planes["codes"].untyped_storage().data_ptr() != whole.data_ptr()
    size = artifact.objects["a"].bytes
    assert begins["c"] - begins["a"] == -(-TiledLayout().nbytes(FORMAT, (16, 64)) // 256) * 256
    anew = Relay({artifact.objects[name]: TiledLayout() for name in "ab"}, torch.device("meta"))
    a, b, c = (anew.memory(artifact.objects[name]) for name in "abc")
    assert c is None and (len(a), len(b)) == (size, artifact.objects["b"].bytes)
    assert a.untyped_storage().nbytes() == len(b)  # the largest


def parameters(**kinds):
    return [ParameterSpec(name, (8, 64), kind) for name, kind in kinds.items()]


def test_only_what_products_alone_read_is_laid_out_anew(opened, known):
    artifact = opened({name: (torch.randn(16, 64), FORMAT) for name in "abc"})
    wanted = {FORMAT: "tiled"}
    specs = [*parameters(a="projection", b="table"), ParameterSpec("d", (8, 64), tied_to="c"),
             *parameters(c="table")]
    assert relays(artifact, specs, wanted, known) == {"a": "tiled"}
    assert relays(artifact, specs, {"q4_g64_fp16": "tiled"}, known) == {}
    assert relays(artifact, specs, {FORMAT: "of nobody"}, known) == {}


@pytest.mark.parametrize("rows, cut", [(12, 8), (16, 4)])
def test_what_does_not_fit_stays_as_it_is(rows, cut, opened, known):
    artifact = opened(
        {"w": (torch.randn(rows, 64), FORMAT)},
        bind={"a": [("w", (0, 64 * cut))], "b": [("w", (64 * cut, 64 * rows))]})
    assert relays(artifact, parameters(a="projection", b="projection"),
                  {FORMAT: "tiled"}, known) == {}
