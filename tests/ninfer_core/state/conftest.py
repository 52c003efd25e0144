"""A model for tests of state: what it leaves in pages and slots tells which tokens it has read."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
import torch

from ninfer_core.api import KVCodecSpec, PagedStateSpec, SlotStateSpec, StatePlane
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_core.state.store import StateStore

FP32 = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
KV = PagedStateSpec("kv", 2, (StatePlane("key", (1, 2)),))
MEMORY = SlotStateSpec("memory", 2, (150,), (1,))
SPECS = {"paged": (KV,), "recurrent": (MEMORY,), "hybrid": (KV, MEMORY)}
VERIFY_ROWS = 4


def fold(digest, token):
    """Digest of one more token; small enough to be exact in fp32."""
    return (digest * 31 + token + 1) % 65521


def fp32(values):
    return torch.tensor([*values], dtype=torch.float32)


class Lab:
    """A store and a cache, and a model on them: its key at a position is the digest of all tokens
    up to there, its slot state that of all tokens, its record tokens that are not in it yet.

    :param specs: of ``paged``, ``recurrent`` or both (``hybrid``) states.
    :param disk: ``(store) -> DiskTier``.
    """

    def __init__(
        self, specs="hybrid", *, num_pages=40, max_sequences=3, host_pages=0, disk=None,
        device="cpu",
    ):
        make = partial(
            StateStore, SPECS[specs], FP32, max_sequences=max_sequences, max_context=1024,
            max_verify_rows=VERIFY_ROWS, device=device,
        )
        self.specs = specs
        self.store, self.scratch = make(num_pages=num_pages), make(num_pages=20)
        host = self.store.host_memory(host_pages) if host_pages else None
        self.cache = PrefixCache(self.store, host=host, disk=disk and disk(self.store))

    def read(self, state, tokens, count, accepted=None):
        """Run a step on ``count`` tokens behind those it has, certain ones, or (``accepted`` given)
        drafts of which those after the first ``accepted`` are wrong."""
        begin, kept = state.num_tokens, count if accepted is None else accepted
        self.store.grow(state, begin + count)
        wrong = range(900, 900 + count - kept)
        new = [*tokens[begin : begin + kept], *wrong]
        digests = [*accumulate(new, fold, initial=self._advance(state))][1:]
        if self.specs != "recurrent":
            self._keys(state.pages, begin, begin + count, [*zip(digests, new, strict=True)])
        if self.specs != "paged":
            for layer in range(2):
                planes = self.store.view("memory", layer)
                if accepted is None:
                    planes.committed[state.slot] = digests[-1] * (1 + layer)
                else:
                    planes.record[state.slot, :count, 0] = fp32(new)
        state.num_tokens, state.replay = begin + kept, 0 if accepted is None else kept

    def begin(self, tokens, count=None, steps=100):
        """A new sequence that has read the first ``count`` tokens."""
        state = self.store.open()
        while (left := (len(tokens) if count is None else count) - state.num_tokens) > 0:
            self.read(state, tokens, min(left, steps))
        return state

    def verify(self, state, tokens, store=None):
        """Every byte of a state is what the tokens make it."""
        store, count = store or self.store, state.num_tokens
        digests = [*accumulate(tokens[:count], fold, initial=0)]
        if self.specs != "recurrent":
            expected = [*zip(digests[1:], tokens[:count], strict=True)]
            self._keys(state.pages, 0, count, expected, store, write=False)
        if self.specs != "paged":
            settled = count - state.replay
            for layer in range(2):
                planes = store.view("memory", layer)
                assert planes.committed[state.slot].eq(digests[settled] * (1 + layer)).all()
                rows = planes.record[state.slot, : state.replay, 0]
                assert rows.equal(fp32(tokens[settled:count]))

    def verify_snapshot(self, snapshot, tokens):
        """The same of a snapshot in any memory."""
        assert snapshot.num_tokens == len(tokens)
        state = self.scratch.restore(snapshot)
        self.verify(state, tokens, self.scratch)
        self.scratch.close(state)

    def verify_cache(self):
        """The same of every copy in memory; and nothing is lost."""
        self.cache.audit()
        for point in self.cache._points:
            for tier, copy in point.copies.items():
                if tier is not self.cache._disk:
                    self.verify_snapshot(copy, point.node.path().tolist())

    def _advance(self, state):
        """Apply recorded rows; the digest of all tokens so far."""
        for layer in range(2 if self.specs != "paged" else 0):
            planes = self.store.view("memory", layer)
            digest = float(planes.committed[state.slot, 0]) / (1 + layer)
            rows = planes.record[state.slot, : state.replay, 0].tolist()
            digest = [*accumulate(rows, fold, initial=digest)][-1]
            planes.committed[state.slot] = digest * (1 + layer)
        if self.specs != "paged":
            return digest
        last = state.num_tokens - 1
        page = state.pages[last // 64]
        keys = self.store.view("kv", 0).planes["key"]["values"]
        return float(keys[page, last % 64, 0, 0]) if last >= 0 else 0

    def _keys(self, pages, begin, end, values, store=None, *, write=True):
        """Write or compare the keys of positions, digest and token each."""
        positions, values = torch.arange(begin, end), fp32(values).view(-1, 2)
        where = torch.tensor(pages, dtype=torch.int64)[positions // 64], positions % 64
        for layer in range(2):
            keys = (store or self.store).view("kv", layer).planes["key"]["values"]
            if write:
                keys[*where, 0] = values * (1 + layer)
            else:
                assert keys[*where, 0].equal(values * (1 + layer))


@pytest.fixture
def lab():
    return Lab
