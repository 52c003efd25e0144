"""The profile passes the conformance kit, and its figures are those of its sources."""

from __future__ import annotations

from ninfer_conformance.suite import ProfileConformance
from ninfer_profile_hopper.profile import profile


class TestConformance(ProfileConformance):
    plugin = "ninfer_profile_hopper.plugin"
    name = "hopper"


def test_figures_lie_below_the_data_sheet():
    figures = profile().figures()
    assert 4.5e12 < figures.read_bytes_per_s < 4.8e12
    assert 683e12 < figures.flops["bfloat16"] < 989e12
    assert figures.flops["float8_e4m3fn"] < 1979e12
    assert 137 << 30 < figures.memory_bytes < 140 << 30


def test_it_has_no_rate_of_fp4():
    assert "float4_e2m1fn_x2" not in profile().figures().flops


def test_it_is_of_compute_capability_9_and_keeps_its_cache_in_bf16():
    assert (profile().capability, profile().default_kv_dtype) == (90, "bf16")
