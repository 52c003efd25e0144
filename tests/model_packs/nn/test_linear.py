"""Projections of one input: as one op where a kernel takes them, else side by side."""

from itertools import count

import pytest
import torch
from attrs import frozen

from ninfer_core.api import UnsupportedError, WeightInfo
from ninfer_nn import Linear


@frozen
class Stored:
    info: WeightInfo
    names: tuple


class Context:
    """Two neighbours are stored alike, others are not; products write their number."""

    def __init__(self, takes_groups):
        self.takes_groups, self.bound, self.numbers = takes_groups, [], count(1)

    def weight_runs(self, *names):
        pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
        return [Stored(WeightInfo((4 * len(pair), 8), None, "any"), pair) for pair in pairs]

    def bind(self, op, *, sizes=None, **constants):
        if op == "linear_group" and not self.takes_groups:
            raise UnsupportedError("no kernel can run op 'linear_group'")
        number = next(self.numbers)
        self.bound.append((op, constants))
        return lambda x, out, residual=None: out.fill_(number)

    def tensor(self, name):
        return torch.full((4,), float(name[1:]))

    def buffer(self, name, width, *, dtype=None):
        return lambda count: torch.zeros(count, width)


def test_side_by_side_where_no_kernel_takes_them():
    context = Context(takes_groups=False)
    linear = Linear(context, "q", "k", "v", out="qkv", apart=("a", "b"))
    assert [op for op, _ in context.bound] == ["linear"] * 3
    assert [each["weight"].names for _, each in context.bound] == [("q", "k"), ("v",), ("a", "b")]
    widths = 8, 4, 8
    expected = torch.cat([torch.full((2, n), i + 1.0) for i, n in enumerate(widths)], dim=1)
    assert torch.equal(linear(torch.zeros(2, 8)), expected)


def test_as_one_op_where_a_kernel_takes_them():
    context = Context(takes_groups=True)
    linear = Linear(context, "q", "k", "v", out="qkv", bias=("b1", "b2", "b3"))
    [(op, constants)] = context.bound
    assert op == "linear_group"
    assert [weight.names for weight in constants["weights"]] == [("q", "k"), ("v",)]
    assert [bias.tolist() for bias in constants["biases"]] == [[1.0] * 4 + [2.0] * 4, [3.0] * 4]
    assert linear(torch.zeros(2, 8)).shape == (2, 12)


@pytest.mark.parametrize("takes_groups", [False, True])
def test_one_weight_is_one_product(takes_groups):
    context = Context(takes_groups)
    Linear(context, "q", "k", out="qk")
    assert [op for op, _ in context.bound] == ["linear"]
