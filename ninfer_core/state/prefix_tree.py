"""A compressed tree of token sequences: what is under a common prefix is stored and compared once.

A node is where a marked sequence ends, or where several part; so a lookup compares each token of
its input at most once, whatever is marked, and says how much of the input is known at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ninfer_core.api import NInferError

Tokens = NDArray[np.int32]
T = TypeVar("T")


@define(eq=False)
class Node(Generic[T]):
    """A place in the tree.

    :ivar tokens: those after its parent; none at the root only. :ivar num_tokens: from the root.
    :ivar mark: what is kept here, or None. :ivar children: by their first token.
    """

    tokens: Tokens = field(factory=lambda: np.zeros(0, np.int32))
    num_tokens: int = 0
    parent: Node[T] | None = None
    mark: T | None = None
    children: dict[int, Node[T]] = field(factory=dict)

    def walk(self, tokens: Tokens) -> Iterator[tuple[Node[T], int]]:
        """The nodes along ``tokens`` from this root, each with how many of them led to it; the
        last node may be further than that."""
        node, at = self, 0
        while at < len(tokens) and (child := node.children.get(int(tokens[at]))):
            at += _common(child.tokens, tokens[at:])
            yield child, at
            if at < child.num_tokens:
                return
            node = child

    def insert(self, tokens: Tokens) -> Node[T]:
        """The node at the end of ``tokens`` from this root; without a mark, it must get one."""
        node = self
        for child, at in self.walk(tokens):
            node = child._split(at) if at < child.num_tokens else child
        if node.num_tokens < len(tokens):
            node = node._append(tokens[node.num_tokens :].copy())
        return node

    def ancestors(self) -> Iterator[T]:
        """Marks above, the nearest first."""
        node = self.parent
        while node is not None:
            if node.mark is not None:
                yield node.mark
            node = node.parent

    def subtree(self) -> Iterator[Node[T]]:
        """This node and those below, parents first."""
        found = [self]
        for node in found:
            yield node
            found += node.children.values()

    def path(self) -> Tokens:
        """All tokens from the root."""
        parts, node = [self.tokens], self
        while node.parent is not None:
            node = node.parent
            parts.append(node.tokens)
        return np.concatenate(parts[::-1])

    def prune(self) -> None:
        """Take away a node without a mark, and those above that it leaves without a purpose; an
        only child goes to its parent's parent, with the tokens of both."""
        node = self
        while node.parent is not None and node.mark is None and len(node.children) < 2:
            parent, first = node.parent, int(node.tokens[0])
            del parent.children[first]
            for child in node.children.values():
                child.tokens = np.concatenate([node.tokens, child.tokens])
                child.parent, parent.children[first] = parent, child
            node = parent

    def audit(self) -> None:
        """Raise `NInferError` unless every node below this root has a purpose and its place."""
        for node in self.subtree():
            for first, child in node.children.items():
                placed = (
                    child.parent is node and first == child.tokens[0]
                    and child.num_tokens == node.num_tokens + len(child.tokens)
                )
                if not placed or (child.mark is None and len(child.children) < 2):
                    raise NInferError("the prefix tree is broken", where=f"{child.num_tokens}")

    def _split(self, at: int) -> Node[T]:
        """A new node on the way to this one, after ``at`` tokens from the root."""
        assert self.parent is not None
        cut = len(self.tokens) - (self.num_tokens - at)
        above = self.parent._append(self.tokens[:cut].copy())
        self.tokens, self.parent = self.tokens[cut:].copy(), above
        above.children[int(self.tokens[0])] = self
        return above

    def _append(self, tokens: Tokens) -> Node[T]:
        child = Node(tokens, self.num_tokens + len(tokens), self)
        self.children[int(tokens[0])] = child
        return child


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length
