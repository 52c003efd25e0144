"""Memory that calls share: it grows, and what a graph has captured stays where it is."""

import gc
import weakref

import torch

from ninfer_triton_kernels.bindings import shared as module
from ninfer_triton_kernels.bindings.shared import shared

CPU = torch.device("cpu")


def take(num_elements, name, dtype=torch.float32):
    return shared(name, num_elements, dtype, CPU)


def test_a_name_is_the_same_memory_until_more_is_needed():
    first = take(8, "grows")
    first.fill_(3)
    assert take(4, "grows") is first is take(8, "grows")
    more = take(9, "grows")
    assert more is not first and not more.any()
    assert take(4, "grows", torch.int32).dtype == torch.int32
    assert take(8, "another") is not first


def test_what_a_graph_has_captured_outlives_its_growth(monkeypatch):
    monkeypatch.setattr(module, "_CAPTURED", {})
    plain = weakref.ref(take(8, "plain"))
    monkeypatch.setattr(module, "_is_capturing", lambda device: True)
    captured = weakref.ref(take(8, "captured"))
    take(4, "captured")
    monkeypatch.setattr(module, "_is_capturing", lambda device: False)
    take(16, "plain")
    take(16, "captured")
    gc.collect()
    assert plain() is None and captured() is not None
