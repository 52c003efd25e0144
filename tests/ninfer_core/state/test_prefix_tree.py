"""The tree of token sequences against a dictionary of them."""

from itertools import takewhile
from operator import eq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import NInferError
from ninfer_core.state.prefix_tree import Node

SEQUENCES = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)


def tokens(sequence):
    return np.array(sequence, np.int32)


def build(sequences):
    root = Node()
    for sequence in sequences:
        node = root.insert(tokens(sequence))
        node.mark = sequence
        root.audit()
    return root


def common(a, b):
    return sum(takewhile(bool, map(eq, a, b)))


@given(st.lists(st.tuples(SEQUENCES, st.booleans())), SEQUENCES)
def test_it_knows_what_was_put_in_and_not_taken_out(changes, looked_up):
    root, known = Node(), {}
    for sequence, stays in changes:
        if stays or sequence not in known:
            known[sequence] = root.insert(tokens(sequence))
            known[sequence].mark = sequence
        else:
            node = known.pop(sequence)
            node.mark = None
            node.prune()
        root.audit()
    assert {node.mark for node in root.subtree()} - {None} == known.keys()
    for sequence, node in known.items():
        assert tuple(node.path()) == sequence and node.num_tokens == len(sequence)
        above = [other for other in known if other == sequence[: len(other)] != sequence]
        assert [*node.ancestors()] == sorted(above, key=len, reverse=True)
    walked = [*root.walk(tokens(looked_up))]
    assert max((at for _, at in walked), default=0) == max(
        (common(each, looked_up) for each in known), default=0)
    passed = [node.mark for node, at in walked if node.mark and at == node.num_tokens]
    assert passed == sorted((s for s in known if s == looked_up[: len(s)]), key=len)


def test_nothing_is_compared_twice(monkeypatch):
    """Two hundred sequences that part late cost as much as one."""
    begin = (1,) * 5000
    root = build([(*begin, last) for last in range(200)])
    compared = []
    monkeypatch.setattr(
        "ninfer_core.state.prefix_tree._common",
        lambda a, b: compared.append(min(len(a), len(b))) or common(a, b),
    )
    [*root.walk(tokens((*begin, 7, 7)))]
    assert sum(compared) == len(begin) + 1


def test_a_split_keeps_no_memory_of_the_whole():
    root = build([(1,) * 1000, (*(1,) * 10, 2)])
    assert all(node.tokens.base is None for node in root.subtree())


@pytest.mark.parametrize("damage", [
    lambda node: setattr(node, "mark", None),
    lambda node: setattr(node, "num_tokens", 9),
    lambda node: setattr(node, "parent", Node()),
    lambda node: setattr(node, "tokens", tokens((3,))),
])
def test_audit_finds_a_node_that_is_out_of_place(damage):
    root = build([(1, 2), (1, 2, 3, 4)])
    damage(root.insert(tokens((1, 2))))
    with pytest.raises(NInferError, match="the prefix tree is broken"):
        root.audit()
