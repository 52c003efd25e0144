"""The table of what was compiled for each card, and what `ninfer plan` makes of it."""

import pytest
from attrs import evolve

from ninfer_core.api import KernelRequest, WeightInfo
from ninfer_core.cli.models import find_card, outline
from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.plugin_host.builtin import ninfer_weight_formats
from ninfer_triton_kernels.compiling import REGISTERS, SHARED_BYTES, Compiled
from ninfer_triton_kernels.facts import describe, key_of, table
from ninfer_triton_kernels.plugin import ninfer_kernels
from ninfer_workbench.kernels import dry_build, fact_rows

FORMATS = {spec.name: spec for spec in ninfer_weight_formats()}
MODULES = tuple(f"ninfer_{name}.plugin" for name in (
    "pack_qwen_dense", "convert", "profile_rtx5090", "triton_kernels"))
OPS = {spec.op for spec in ninfer_kernels()}


@pytest.mark.parametrize("capability", [90, 120])
def test_what_was_compiled_fits_the_card(capability):
    known = table()[str(capability)]
    assert {key.split(" | ")[0] for key in known} <= OPS
    for key, kernels in known.items():
        for each in kernels:
            threads = 32 * each["warps"]
            assert 0 < each["registers"] <= 255 and each["registers"] * threads <= REGISTERS, key
            assert each["shared"] <= SHARED_BYTES[capability], key
            assert each["programs"] >= 1, key


@pytest.mark.parametrize("capability", [90, 120])
def test_products_of_every_published_model_were_compiled(capability):
    keys = table()[str(capability)]
    for shape in ("q4_g64_fp16 34816x5120", "nvfp4 34816x5120", "q4_g64_fp16 262144x2048",
                  "nvfp4 655360x2560", "nvfp4 1179648x4096", "bf16 32768x256 | num_heads=64"):
        assert any(shape in key for key in keys), shape


def test_a_request_is_described_by_its_kernels():
    key = next(key for key in table()["120"] if key.startswith("linear | q4_g64_fp16"))
    shape = tuple(map(int, key.split()[-1].split("x")))
    info = WeightInfo(shape, FORMATS["q4_g64_fp16"], "any")
    request = KernelRequest("linear", "cuda", "bfloat16", 120, (info,))
    assert key_of(request) == key
    line = describe(request)
    assert line and "tiled_linear" in line and "registers" in line
    assert describe(evolve(request, capability=121)) == line  # the same code
    assert describe(evolve(request, capability=80)) is None
    assert describe(evolve(request, weights=(evolve(info, shape=(48, 64)),))) is None


@pytest.mark.parametrize("registers, shared, warps, programs", [
    (32, 0, 4, 12), (255, 0, 4, 2), (64, 50 << 10, 4, 1), (168, 0, 8, 1),
])
def test_programs_of_a_multiprocessor(registers, shared, warps, programs):
    compiled = Compiled("any", registers, 0, shared, warps, 0, ())
    assert compiled.programs(120) == programs


def test_a_plan_shows_them_for_all_ops_of_a_published_model():
    report = load_plugins(PluginSelection(modules=MODULES, names=()))
    card = find_card("qwen3.6-27b", report.registry)
    config = LaunchConfig(model="qwen3.6-27b", profile="rtx5090")
    plan = resolve(config, report, absent=True, artifact=outline(card, report.registry))
    choices = dry_build(plan)
    rows = [*fact_rows(choices)]
    assert {op for op, _, _ in rows} == {c.request.op for c in choices if c.spec.facts}
    assert all("registers" in line for _, _, line in rows)
    assert any(weights == "q4_g64_fp16 [34816, 5120]" for _, weights, _ in rows)
