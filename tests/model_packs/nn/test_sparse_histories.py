"""Sparse attention through anything a sequence can live through: chunks, company, rejected drafts,
a snapshot at any remainder of a block and its restore elsewhere. The bits are those of one step."""

import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.store import StateStore
from ninfer_nn import (
    IndexedAttention,
    IndexSizes,
    LatentAttention,
    indexed_attention_states,
    latent_attention_states,
    rope_frequencies,
    rope_tables,
)

H, LENGTH, ROWS, MAX_TOKENS = 12, 73, 5, 80
INDEX = IndexSizes(num_heads=2, head_dim=8, block=4, budget=2)
KINDS = {
    "indexed": (
        indexed_attention_states("kv", 1, num_kv_heads=1, head_dim=8, index=INDEX),
        {"query": (16, H), "key": (8, H), "gate": (16, H), "value": (8, H), "output": (H, 16),
         "query_norm": (8,), "key_norm": (8,), "index/query": (16, H), "index/key": (8, H),
         "index/query_norm": (8,), "index/key_norm": (8,)},
    ),
    "latent": (
        latent_attention_states("kv", 1, latent_dim=8, index=INDEX),
        {"query_down": (6, H), "query_norm": (6,), "query_up": (8, 6), "latent": (8, H),
         "latent_norm": (8,), "key_up": (16, 4), "value_up": (6, 8), "output": (H, 6),
         "index/query": (16, 6), "index/key": (8, H), "index/key_norm": (8,),
         "index/key_norm_bias": (8,),
         "index/head_weights": (2, H), "index/pool_gate": (8, H), "index/pool_bias": (4, 8)},
    ),
}


class Life:
    """Two sequences over one store, and the outputs of what they have committed."""

    def __init__(self, kind, context, codec):
        specs, shapes = KINDS[kind]
        generator = torch.Generator().manual_seed(3)
        parameters = {
            f"attention/{name}": torch.randn(shape, generator=generator) / shape[-1] ** 0.5
            for name, shape in shapes.items()
        }
        spec = KVCodecSpec(codec, f"ninfer_core.state.codecs:{codec.capitalize()}Codec")
        self.store = StateStore(
            specs, spec, num_pages=12, max_sequences=3, max_context=128, max_verify_rows=ROWS
        )
        self.store.memory.rows.fill_(0xFF)
        context = evolve(context, parameters=parameters, store=self.store, buffers={})
        shared = {"state": "kv", "layer": 0, "index": INDEX, "eps": 1e-5}
        if kind == "latent":
            self.block = LatentAttention(
                context, "attention", **shared, num_heads=2, query_dim=6, latent_dim=8, key_dim=4,
                value_dim=3,
            )
        else:
            rope = rope_tables(rope_frequencies(4, 1e4), 128)
            self.block = IndexedAttention(
                context, "attention", **shared, num_heads=2, num_kv_heads=1, head_dim=8, rope=rope
            )
        self.builder = BatchBuilder(
            max_rows=2, max_tokens=MAX_TOKENS, max_logits=2, max_pages=2
        )
        self.states = [self.store.open() for _ in range(2)]
        self.ids = [1, 2]
        self.inputs = torch.randn(2, LENGTH, H, generator=generator)
        self.outputs = [torch.zeros(0, H), torch.zeros(0, H)]
        self._noise = generator

    def step(self, parts):
        """Of (sequence, tokens, accepted or None)."""
        rows, xs = [], []
        for index, count, accepted in parts:
            state = self.states[index]
            begin, kept = state.num_tokens, count if accepted is None else accepted
            self.store.grow(state, begin + count)
            own = self.inputs[index, begin : begin + kept]
            xs.append(torch.cat((own, torch.randn(count - kept, H, generator=self._noise))))
            row = Row(self.ids[index], state, begin, [0] * count, 1, accepted is None)
            rows.append(row)
        x = torch.cat(xs)
        out = torch.zeros_like(x)
        self.block(x, self.builder.fill(rows), out)
        outs = out.split([len(x) for x in xs])
        for (index, count, accepted), part in zip(parts, outs, strict=True):
            kept = count if accepted is None else accepted
            self.states[index].num_tokens += kept
            self.states[index].replay = 0 if accepted is None else kept
            self.outputs[index] = torch.cat((self.outputs[index], part[:kept]))

    def move(self, index):
        """To a snapshot and back, into another slot and, as far as they are not shared, pages."""
        state = self.states[index]
        snapshot = self.store.snapshot(state, state.num_tokens)
        self.store.close(state)
        between = self.store.open()  # takes the slot, and soils it
        self.states[index] = self.store.restore(snapshot)
        self.store.close(between)
        self.store.drop(snapshot)
        self.ids[index] += 2


def act(life, draw):
    left = [LENGTH - each.num_tokens for each in life.states]
    going = [index for index in range(2) if left[index]]
    chosen = draw(st.lists(st.sampled_from(going), min_size=1, max_size=2, unique=True))
    if draw(st.integers(0, 3)) == 0:
        return life.move(chosen[0])
    parts = []
    for index in chosen:
        if draw(st.booleans()):
            parts.append((index, draw(st.integers(1, min(left[index], 25))), None))
        else:
            accepted = draw(st.integers(0, min(ROWS, left[index])))
            parts.append((index, draw(st.integers(max(1, accepted), ROWS)), accepted))
    life.step(parts)


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bits_are_those_of_one_step(kind, codec, data, context):
    life = Life(kind, context, codec)
    for _ in range(60):
        if all(each.num_tokens == LENGTH for each in life.states):
            break
        act(life, data.draw)
    for index in range(2):
        whole = Life(kind, context, codec)
        whole.step([(index, LENGTH, None)])
        expected = whole.outputs[index][: len(life.outputs[index])]
        assert life.outputs[index].equal(expected) and expected.isfinite().all()
    life.store.audit()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", range(61, 66))
def test_a_snapshot_at_every_remainder(kind, place, context):
    whole, life = Life(kind, context, "fp32"), Life(kind, context, "fp32")
    whole.step([(0, LENGTH, None)])
    for rejected in range(ROWS + 1):
        life = Life(kind, context, "fp32")
        life.step([(0, place, None)])
        if rejected:
            life.step([(0, rejected, 0)])
        life.move(0)
        while life.states[0].num_tokens < LENGTH:
            life.step([(0, ROWS, min(2, LENGTH - life.states[0].num_tokens))])
        assert life.outputs[0].equal(whole.outputs[0])
