"""Rows of hashed n-grams by their definition, however a sequence is cut into steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.state.views import SlotPlanes
from ninfer_ops.ngram_rows import reference

EOS, N, HEADS = 3, 3, 2
MULTIPLIERS = torch.tensor([23703573157769, 20109073645365, 8052911324071])
MODULI, OFFSETS = torch.tensor([101, 103, 107, 109]), torch.tensor([0, 101, 204, 311])
STEPS = {
    "at once": [(30, None)],
    "one by one": [(1, None)] * 30,
    "drafts": [(5, None), (4, 3), (4, 4), (3, 0), (1, None), (4, 1), (2, 2), (14, None)],
}


def make(make_request):
    planes = SlotPlanes(
        torch.zeros(3, N - 1, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.int64))
    sizes = {"ngram_size": N, "heads_per_ngram": HEADS, "eos": EOS}
    op = reference.bind(
        make_request("ngram_rows", sizes=sizes), planes, MULTIPLIERS, MODULI, OFFSETS)

    def call(tokens, batch):
        batch.token_ids[: batch.num_tokens] = tokens[:, 0].abs().long()
        return op(batch, torch.full((batch.num_tokens, 2 * HEADS), -1))

    return planes, call


def oracle(tokens):
    """Rows of each token, with 64-bit products, by the definition alone."""
    rows = []
    for p in range(len(tokens)):
        context = [tokens[p]]
        for s in range(1, N):
            is_open = p - s >= 0 and EOS not in tokens[p - s : p]
            context.append(tokens[p - s] if is_open else EOS)
        mixed, found = context[0] * int(MULTIPLIERS[0]), []
        for order in range(1, N):
            mixed ^= context[order] * int(MULTIPLIERS[order])
            heads = range((order - 1) * HEADS, order * HEADS)
            found += [mixed % int(MODULI[j]) + int(OFFSETS[j]) for j in heads]
        rows.append(found)
    return rows


@pytest.fixture(scope="module")
def tokens():
    """Among them several ends of text, also two in a row, at the start and the end."""
    drawn = torch.randint(12, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    drawn[0] = drawn[9] = drawn[10] = drawn[17] = drawn[29] = EOS
    return drawn


@pytest.mark.parametrize("steps", STEPS)
def test_rows(steps, make_request, drive, tokens):
    planes, call = make(make_request)
    found = drive(call, [torch.tensor(tokens, dtype=torch.float)[:, None]], STEPS[steps])
    assert found.tolist() == oracle(tokens)
    assert planes.committed[1].tolist() == [tokens[-2] + 1, tokens[-1] + 1]
    assert not planes.committed[::2].any()


@settings(max_examples=50, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 248_319), min_size=1, max_size=12), st.data())
def test_any_tokens_in_any_steps(make_request, slot_batch, tokens, data):
    tokens = [EOS if token % 4 == 0 else token for token in tokens]
    _, call = make(make_request)
    found, begin = [], 0
    while begin < len(tokens):
        count = data.draw(st.integers(1, len(tokens) - begin))
        part = torch.tensor(tokens[begin : begin + count], dtype=torch.float64)[:, None]
        found += call(part, slot_batch((1, count, 0, True))).tolist()
        begin += count
    assert found == oracle(tokens)
