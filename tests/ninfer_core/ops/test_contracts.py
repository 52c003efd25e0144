"""Contracts name what kernels and the reference agree on."""

import inspect

import pytest

from ninfer_fixtures.contracts import CONTRACTS


@pytest.mark.parametrize("name", CONTRACTS)
def test_reference_takes_exactly_the_contracts_constants(name):
    contract = CONTRACTS[name]
    parameters = list(inspect.signature(contract.reference.load()).parameters)
    assert contract.name == name
    assert parameters == ["request", *contract.constants]
    assert set(contract.weights) <= set(contract.constants)
