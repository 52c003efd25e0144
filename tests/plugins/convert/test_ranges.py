"""Matrices go from the checkpoint to the file in ranges of rows: the same bytes as in one piece,
and memory for no more than a range."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ninfer_convert import objects
from ninfer_convert.storage import plan_objects
from ninfer_core.api import ImportedParameter, ImportPlan, ParameterSpec, StorageChoice
from ninfer_core.artifact.formats.minifloat import Nvfp4Codec

WIDTH = 128
LIMIT = 20 << 20
QUANTISED = (
    "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "q4_1_g32_fp16",
    "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32",
)


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(objects, "RANGE_ELEMENTS", 128 * WIDTH)


def random(rows, width=WIDTH):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


def nvfp4_parts(rows):
    generator = torch.Generator().manual_seed(rows)
    return {
        "codes": torch.randint(0, 16, (rows, WIDTH), generator=generator, dtype=torch.uint8),
        "scales": torch.rand(rows, WIDTH // 16, generator=generator).to(torch.float8_e4m3fn),
        "divisor": torch.tensor(3.0),
    }


def parameter(name, values, parts=None, format="", read=None, **options):
    """One whose parts, or values, are these; ``read`` takes the counts of rows that are read."""
    read = [] if read is None else read

    def rows(begin, end):
        some = {n: p[begin:end] if p.ndim else p for n, p in (parts or {}).items()}
        return parameter(name, values[begin:end], some or None, format, read, **options)

    def noted(what):
        read.append(len(values))
        return what

    spec = ParameterSpec(name, tuple(values.shape))
    return ImportedParameter(
        spec, (), lambda: noted(values), (lambda: noted(parts)) if parts else None, format,
        rows=rows, **options,
    )


@pytest.fixture
def planned(plugins):
    """The only object of parameters."""

    def plan(members, format="", layout=""):
        choice = StorageChoice("*", format, layout)
        (stored,) = plan_objects(ImportPlan({}, (*members,), {}, {}, (choice,)), plugins.registry)
        return stored

    return plan


def image_of(stored):
    image = torch.zeros(stored.nbytes, dtype=torch.uint8)
    for begin, piece in stored.pieces():
        image[begin : begin + len(piece)] = piece
    return image


def packed(stored, parts):
    """The image as the layout makes it of everything at once."""
    return stored.layout.layout.load()().pack(stored.format.name, parts)


@pytest.mark.parametrize("format", ["bf16", "fp32", *QUANTISED])
def test_what_is_quantised_by_rows(planned, small_ranges, format):
    read, values = [], random(300)
    stored = planned([parameter("a", values, read=read)], format)
    expected = packed(stored, stored.format.codec.load()().quantize(values))
    assert torch.equal(image_of(stored), expected)
    assert read == [128, 128, 44]


@pytest.mark.parametrize("format", ["bf16", "fp32", *QUANTISED])
def test_what_is_kept(planned, plugins, small_ranges, format):
    codec, read = plugins.registry.formats[format].spec.codec.load()(), []
    parts = codec.quantize(random(300))
    stored = planned([parameter("a", random(300), parts, format, read)])
    assert stored.kept
    assert torch.equal(image_of(stored), packed(stored, parts))
    assert read == [128, 128, 44]


@pytest.mark.parametrize(
    ("layout", "rows"), [("block_scale_k16_m128x4_v1", 384), ("block_scale_k16_plain_v1", 300)])
def test_nvfp4_keeps_its_tiles_and_its_divisor(planned, small_ranges, layout, rows):
    read, parts = [], nvfp4_parts(rows)
    stored = planned([parameter("a", random(rows), parts, "nvfp4", read)])
    assert stored.layout.name == layout
    assert torch.equal(image_of(stored), packed(stored, parts))
    assert read == [128, 128, rows - 256]


def test_members_of_an_object_follow_each_other(planned, small_ranges):
    each = [nvfp4_parts(rows) for rows in (384, 128, 256)]
    members = [parameter(str(i), random(len(parts["codes"])), parts, "nvfp4", parent="all")
               for i, parts in enumerate(each)]
    stored = planned(members)
    together = {name: torch.cat([parts[name] for parts in each]) for name in ("codes", "scales")}
    expected = packed(stored, {**together, "divisor": torch.tensor(3.0)})
    assert torch.equal(image_of(stored), expected)


def test_matrices_of_a_bank_are_read_one_by_one(planned, small_ranges):
    read, parts = [], nvfp4_parts(384)
    bank = {"bank": True, "parent": "bank"}
    members = [parameter(name, random(384), parts, "nvfp4", read, **bank) for name in "ab"]
    stored = planned(members)
    twice = {name: torch.stack([part, part]) for name, part in parts.items()}
    assert torch.equal(image_of(stored), packed(stored, twice))
    assert read == [384, 384]


def test_a_number_that_is_to_be_found_is_of_the_whole(planned, small_ranges, monkeypatch):
    def quantize(codec, values):
        return {**nvfp4_parts(len(values)), "divisor": values.amax()}

    monkeypatch.setattr(Nvfp4Codec, "quantize", quantize)
    read, values = [], random(384)
    stored = planned([parameter("a", values, read=read)], "nvfp4")
    assert torch.equal(image_of(stored), packed(stored, quantize(None, values)))
    assert read == [384]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A table of 32 MiB in bf16 as a checkpoint of eight shards."""
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "config.json").write_text("{}")
    tensors = {f"shard_{i}": torch.full((16384, 128), i, dtype=torch.bfloat16) for i in range(8)}
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of memory maps on Linux alone")
@pytest.mark.parametrize(("kind", "said"), [("rows", "written"), ("whole", "no memory")])
@pytest.mark.parametrize("format", ["", "q8_g32_fp16"])
def test_memory_is_that_of_a_range(shards, load, tmp_path, format, kind, said):
    path = tmp_path / "m.ninfer"
    job = [sys.executable, Path(__file__).with_name("range_memory.py")]
    arguments = [shards, format, kind, str(LIMIT), path]
    done = subprocess.run([*job, *arguments], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr
    if kind == "rows":
        read = load(path).weight("table").part(3, 8).dense()
        assert (read - 3).abs().max() < 1e-3
