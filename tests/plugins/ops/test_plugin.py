"""What the distribution registers fits what it contains."""

from __future__ import annotations

from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_ops import plugin


def test_every_contract_has_its_reference_as_the_last_resort():
    registry = load_plugins(PluginSelection(modules=(plugin.__name__,), names=())).registry
    own = {each.name for each in plugin.ninfer_op_contracts()}
    assert own == {kernel.op for kernel in plugin.ninfer_kernels()}
    assert own < registry.contracts.keys() == CONTRACTS.keys()
    for op in own:
        reference = registry.kernels[f"reference.{op}"].spec
        assert reference.factory == CONTRACTS[op].reference
        assert reference.priority == -100 and reference.batch_invariant
