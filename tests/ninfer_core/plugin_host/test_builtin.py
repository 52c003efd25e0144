"""What the core registers fits what the core contains."""

from __future__ import annotations

import pytest

from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_core.plugin_host.references import references

REGISTRY = load_plugins(PluginSelection(names=())).registry
KINDS = ("kernels", "formats", "layouts", "kv_codecs")
SPECS = [
    registered.spec for kind in KINDS for registered in getattr(REGISTRY, kind).values()
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_reference_loads(spec):
    for reference in references(spec):
        assert callable(reference.load())


def test_every_contract_of_no_fused_op_has_its_reference_as_the_last_resort():
    kernels = {name: registered.spec for name, registered in REGISTRY.kernels.items()}
    contracts = {name: each for name, each in REGISTRY.contracts.items() if not each.fused}
    assert {spec.op for spec in kernels.values()} == contracts.keys()
    for op, contract in contracts.items():
        reference = kernels.pop(f"reference.{op}")
        assert reference.op == op and reference.factory == contract.reference
        assert reference.priority == -100 and reference.batch_invariant
    assert all(spec.priority < -100 for spec in kernels.values())  # only where they are asked for


def test_every_format_has_a_layout():
    held = {name for layout in REGISTRY.layouts.values() for name in layout.spec.formats}
    assert held == set(REGISTRY.formats)


@pytest.mark.parametrize(("name", "bits"), [
    ("q4_g64_fp16", 4.25), ("q5_g64_fp16", 5.25), ("q6_g64_fp16", 6.25), ("q8_g32_fp16", 8.5),
    ("nvfp4", 4.5), ("fp8_e4m3fn_row_bf16", 8), ("bf16", 16)])
def test_bits_per_weight(name, bits):
    assert REGISTRY.formats[name].spec.bits_per_weight == bits
