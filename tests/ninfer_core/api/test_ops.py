"""What an op contract may say."""

from __future__ import annotations

import pytest

from ninfer_core.api import OpContract, PluginError

FACTS = {"name": "norm", "constants": ("weight", "bias"), "weights": ("weight",),
         "sizes": ("eps",), "reference": "a.module:bind"}


def test_its_reference_is_a_kernel_of_the_last_resort():
    kernel = OpContract(**FACTS).reference_kernel()
    assert (kernel.op, kernel.name, kernel.priority) == ("norm", "reference.norm", -100)


@pytest.mark.parametrize("odd", [
    {"constants": "weight"}, {"weights": "weight"}, {"sizes": "eps"}, {"sizes": (1,)},
    {"fused": "no"}, {"name": "Norm"}, {"weights": ("wieght",)}, {"reference": "nowhere"}],
    ids=str)
def test_what_it_may_not_be(odd):
    with pytest.raises((PluginError, TypeError, ValueError)):
        OpContract(**{**FACTS, **odd})
