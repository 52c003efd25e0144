"""Projections of one input: each product is told what comes before and after it."""

import pytest
import torch
from attrs import evolve, frozen

from ninfer_core.api import WeightInfo
from ninfer_nn import Linear


@frozen
class Product:
    """Rows of ones; keeps its place and says so to a list."""

    rows: int
    calls: list
    place: tuple = (False, False)

    def among(self, *, leads, follows):
        return evolve(self, place=(leads, follows))

    def __call__(self, x, out, residual=None):
        self.calls.append(self.place)
        return out.fill_(1.0)


@frozen
class Stored:
    info: WeightInfo


class Context:
    """Three runs of rows, stored differently."""

    def __init__(self, calls):
        self.calls = calls

    def weight_runs(self, *names):
        return [Stored(WeightInfo((4, 8), None, "any")) for _ in names]

    def bind(self, op, *, weight, bias):
        return Product(weight.info.shape[0], self.calls)

    def buffer(self, name, width, *, dtype=None):
        return lambda count: torch.zeros(count, width)


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_products_know_their_place(leads, follows):
    calls: list = []
    linear = Linear(Context(calls), "q", "k", "v", out="qkv", leads=leads, follows=follows)
    assert torch.equal(linear(torch.zeros(2, 8)), torch.ones(2, 12))
    assert calls == [(True, follows), (True, True), (leads, True)]


def test_one_product_alone_overlaps_with_nothing():
    calls: list = []
    Linear(Context(calls), "q", out="q")(torch.zeros(2, 8))
    assert calls == [(False, False)]
