"""The profile passes the conformance kit, and its figures are those of its sources."""

from __future__ import annotations

from ninfer_conformance.suite import ProfileConformance
from ninfer_profile_dgx_spark.profile import profile


class TestConformance(ProfileConformance):
    plugin = "ninfer_profile_dgx_spark.plugin"
    name = "dgx_spark"


def test_figures_lie_below_the_data_sheet():
    figures = profile().figures()
    assert figures.read_bytes_per_s == 246e9 < 273e9
    assert figures.memory_bytes == 115 << 30


def test_it_is_of_compute_capability_12_1_and_keeps_its_cache_in_fp8():
    assert (profile().capability, profile().default_kv_dtype) == (121, "fp8")
