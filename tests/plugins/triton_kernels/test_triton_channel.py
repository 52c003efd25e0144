"""The delta rule with decays by channel, against the reference, and bit for bit."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from ninfer_conformance.tolerances import require_close
from ninfer_core.state.views import SlotPlanes
from ninfer_triton_kernels.bindings import channel

H, DK, DV = 2, 16, 24
SIZES = {"num_heads": H, "key_dim": DK, "value_dim": DV, "eps": 1e-6, "lower_bound": -5.0}
WIDTHS = (H * DK, H * DK, H * DV, H * DK, H)
ROWS = ((2, 3, 0, 1), (4, 1, 2, 1), (1, 4, 3, 0), (3, 0, 2, 1), (5, 2, 0, 0), (6, 0, 1, 0))
"""Slot, tokens, replayed tokens, whether certain."""


@pytest.fixture
def rule(bind, randn, device):
    """``(tokens) -> (kernel, planes), (reference, planes), inputs``"""

    def make(count):
        generator = torch.Generator().manual_seed(9)
        committed = torch.randn(7, H, DK, DV, generator=generator) * 0.3
        record = torch.randn(7, 4, sum(WIDTHS[1:]), generator=generator)
        keys, _, gates, betas = record.split((H * DK, H * DV, H * DK, H), -1)
        keys.copy_(torch.nn.functional.normalize(keys.unflatten(-1, (H, DK)), dim=-1).flatten(-2))
        gates.copy_(-gates.abs())
        betas.copy_(betas.sigmoid())
        made = SlotPlanes(committed.to(device), record.to(device))
        both = made, evolve(made, committed=made.committed.clone(), record=made.record.clone())
        weights = {"a_log": randn(H, seed=11).float(), "dt_bias": randn(H * DK, seed=12).float()}
        calls = [bind("channel_delta_rule", SIZES, planes=each, **weights)[which]
                 for which, each in enumerate(both)]
        inputs = [randn(count, w + 3, seed=i)[:, :w] for i, w in enumerate(WIDTHS)]
        return list(zip(calls, both, strict=True)), inputs

    return make


@pytest.fixture
def batch_of(slot_batch, device):
    def make(*rows):
        batch = slot_batch(*rows)
        for name in ("row_start", "slots", "replay", "certain", "token_row"):
            setattr(batch, name, getattr(batch, name).to(device))
        return batch

    return make


@pytest.mark.parametrize("together", [2, 3, 512])
def test_rows_of_all_kinds(together, rule, batch_of, poisoned, monkeypatch):
    """Also where a step is cut within rows, certain ones or not."""
    monkeypatch.setattr(channel, "TOKENS", together)
    batch = batch_of(*ROWS)
    both, inputs = rule(batch.num_tokens)
    results = [call(*inputs, batch, poisoned(batch.num_tokens, H * DV)) for call, _ in both]
    require_close(results[0], results[1], "read", "bf16")
    for kind in ("committed", "record"):
        own, expected = (getattr(states, kind) for _, states in both)
        require_close(own, expected, kind, "fp32")


def test_replay_company_and_cuts_change_no_bit(rule, batch_of, poisoned, monkeypatch):
    """Seven tokens at once, and as steps of which some were uncertain and rejected in part."""
    (pair, _), inputs = rule(7)
    call, states = pair
    start = states.committed.clone()

    def step(first, *rows):
        made = batch_of(*rows)
        parts = [torch.cat((x[first:], x))[: made.num_tokens] for x in inputs]
        return call(*parts, made, poisoned(made.num_tokens, H * DV))

    whole = step(0, (3, 7, 0, 1))
    final = states.committed[3].clone()
    states.committed.copy_(start)
    monkeypatch.setattr(channel, "TOKENS", 2)
    parts = [step(0, (3, 3, 0, 0))[:2], step(2, (3, 4, 2, 0), (1, 2, 0, 1))[:1],
             step(3, (3, 4, 1, 1))]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states.committed[3], final)
