"""The profile passes the conformance kit, and its figures are those of its sources."""

from __future__ import annotations

import pytest

from ninfer_conformance.suite import ProfileConformance
from ninfer_profile_rtx5090.profile import profile


class TestConformance(ProfileConformance):
    plugin = "ninfer_profile_rtx5090.plugin"
    name = "rtx5090"


def test_figures_lie_between_what_others_measured_and_the_data_sheet():
    figures = profile().figures()
    assert 1.51e12 < figures.read_bytes_per_s < 1.792e12
    assert figures.flops["bfloat16"] == pytest.approx(209.5e12)
    assert 419e12 < figures.flops["float8_e4m3fn"] < figures.flops["float4_e2m1fn_x2"] < 1676e12


@pytest.mark.parametrize(("weights_gib", "tokens"), [(16.67, 319_000), (19.73, 225_000)])
def test_memory_is_what_published_automatic_pools_end_at(weights_gib, tokens):
    """Weights, FP8 KV of main (16 layers) and MTP attention, 16 slots, workspace."""
    kv, slot, workspace = (16 + 1) * 4 * 516, 147 << 20, 243 << 20
    used = weights_gib * (1 << 30) + tokens * kv + 16 * slot + workspace
    assert profile().figures().memory_bytes == pytest.approx(used, rel=0.001)


def test_it_is_of_compute_capability_12_and_keeps_its_cache_in_fp8():
    assert (profile().capability, profile().default_kv_dtype) == (120, "fp8")
