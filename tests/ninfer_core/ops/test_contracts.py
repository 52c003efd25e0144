"""Contracts name what kernels and the reference agree on."""

import inspect

import pytest

from ninfer_core.ops.contracts import CONTRACTS
from ninfer_core.plugin_host.builtin import ninfer_kernels


@pytest.mark.parametrize("name", CONTRACTS)
def test_reference_takes_exactly_the_contracts_constants(name):
    contract = CONTRACTS[name]
    parameters = list(inspect.signature(contract.reference.load()).parameters)
    assert contract.name == name
    assert parameters == ["request", *contract.constants]
    assert set(contract.weights) <= set(contract.constants)


def test_every_contract_has_its_registered_reference():
    """Those of fused ops would keep the kernels of their parts from running."""
    registered = {spec.op: spec for spec in ninfer_kernels() if spec.priority == -100}
    assert set(registered) == {name for name, each in CONTRACTS.items() if not each.fused}
    for name, spec in registered.items():
        assert spec.factory == CONTRACTS[name].reference
        assert spec.batch_invariant
