"""Products in every tile that `ninfer bench tune` may try: what they give, and their rows."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from ninfer_bench import stepping, tune
from ninfer_bench.products import Product, variants_of
from ninfer_core.api import KernelRequest
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_triton_kernels.bindings.launching import num_processors
from ninfer_triton_kernels.plugin import ninfer_kernels
from ninfer_triton_kernels.tuning import Tile, candidate_tiles

KERNELS = {spec.name: spec for spec in ninfer_kernels()}


@pytest.mark.parametrize("op, format_name, kind", [
    ("linear", "q4_g64_fp16", "q4_g64"), ("linear", "bf16", "bf16"), ("swiglu", "nvfp4", "nvfp4"),
])
def test_a_variant_is_a_row_of_the_table_and_multiplies(
    op, format_name, kind, make_weight, randn, device
):
    weight = make_weight(format_name, 128, 512)
    request = KernelRequest(op, "cuda", "bfloat16", 90, (weight.info,), max_tokens=8)
    listed = KERNELS[f"triton.{op}"].variants.load()(request)
    assert {table for table, _, _ in listed} == {f"90.{kind}"}
    assert all((row["rows"], row["depth"]) == (128, 512) for _, row, _ in listed)
    if device == "cpu":
        tiles = [Tile(*row["tile"]) for _, row, _ in listed]
        assert tiles == candidate_tiles(kind, 128, 512, 1)
    free = {"bias": None} if op == "linear" else {}
    x = randn(3, 512)
    out = torch.full((3, 128 if op == "linear" else 64), torch.nan).to(x)
    reference = CONTRACTS[op].reference.load()(request, weight=weight, **free)
    expected = reference(x, torch.zeros_like(out)).double()
    for _, _, factory in listed if device == "cuda" else (listed[0], listed[-1]):
        result = factory(request, weight=weight, **free)(x, out.clone()).double()
        assert (result - expected).norm() / expected.norm() < 0.01


def test_kernels_chosen_by_name_are_not_tuned():
    tuned = {name for name, spec in KERNELS.items() if spec.variants}
    assert tuned == {"triton.linear", "triton.swiglu"}


def test_they_are_timed_and_written_as_the_table_has_them(make_weight, device, monkeypatch):
    monkeypatch.setattr(stepping, "MIN_RUNS", 1)
    monkeypatch.setattr(stepping, "WARM_UP", 0)
    monkeypatch.setattr(tune, "SECONDS", 0.0)
    weight = make_weight("bf16", 128, 512)
    request = KernelRequest("linear", "cuda", "bfloat16", 90, (weight.info,), max_tokens=8)
    product = Product(request, CONTRACTS["linear"], [weight])
    binder = SimpleNamespace(
        choose=lambda request: SimpleNamespace(spec=KERNELS["triton.linear"]))
    listed = variants_of(product, binder)
    asked = Namespace(part=(1, len(listed) // 2), tokens=[1, 3], compile=False)
    plan = SimpleNamespace(hardware=SimpleNamespace(device=device, compute_dtype="bfloat16"))
    found = tune._tune(plan, product, listed, asked, binder)
    assert len(found.variants) in (2, 3) and not any(each.fault for each in found.variants)
    assert set(found.now) == {1, 3}
    [row] = tomllib.loads(tune.rows_of([found]))["90"]["bf16"]
    processors = num_processors(torch.device(device))
    assert Tile(*row["tile"]) in candidate_tiles("bf16", 128, 512, processors)
    assert len(row["us"]) == 2
