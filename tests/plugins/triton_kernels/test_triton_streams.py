"""Gated streams and hashed n-grams against the references."""

from __future__ import annotations

import pytest
import torch

from ninfer_conformance.tolerances import require_close
from ninfer_core.state.views import SlotPlanes

S, H = 3, 40
OPS = {  # op: (sizes, widths of what it reads, width of its result)
    "grouped_rmsnorm": ({"eps": 1e-3, "groups": S, "unit_offset": True}, [S * H], S * H),
    "scaled_silu": ({"scale": 1 / S}, [H], H),
    "stream_read": ({"num_streams": S}, [S * H, S * H], H),
    "stream_add": ({"num_streams": S}, [H, S], S * H),
    "signed_sqrt_gate": ({"num_streams": S}, [S * H, S * H, H], S * H),
}


@pytest.mark.parametrize("op", OPS)
def test_streams(op, bind, randn, poisoned):
    sizes, widths, width = OPS[op]
    constants = {"weight": randn(S * H, seed=9)} if op == "grouped_rmsnorm" else {}
    inputs = [randn(3, each + 5, seed=i)[:, 2 : 2 + each] for i, each in enumerate(widths)]
    results = []
    for call in bind(op, sizes, **constants):
        out = poisoned(3, width + 3)
        if op == "stream_add":
            out[:, :width] = randn(3, width, seed=7)
        call(*inputs, out[:, :width])
        assert out[:, width:].isnan().all()
        results.append(out[:, :width])
    require_close(*results, op, "bf16")


def test_a_product_of_nothing_opens_a_gate_by_half(bind, randn, poisoned):
    k, q, v = randn(1, S * H), randn(1, S * H, seed=2), randn(1, H, seed=3)
    k[:, :H], k[:, H : 2 * H] = 0, k[:, H : 2 * H] * 1e-9
    results = [call(k, q, v, poisoned(1, S * H))
               for call in bind("signed_sqrt_gate", {"num_streams": S})]
    require_close(*results, "gate", "bf16")
    assert torch.equal(results[0][:, :H], v / 2)


STEPS = (  # slot, tokens, replayed tokens, whether certain
    [(2, 3, 0, 1), (4, 1, 0, 1), (1, 4, 0, 0)],
    [(1, 2, 3, 0), (2, 20, 0, 1), (4, 4, 0, 0), (3, 0, 0, 1)],
    [(4, 1, 4, 1), (1, 1, 0, 1), (2, 2, 0, 0)],
)


@pytest.mark.parametrize("ngram_size", [2, 3, 4])
def test_rows_of_n_grams(ngram_size, bind, slot_batch, device):
    """Steps with drafts and replay, ends of text among the tokens; ids as large as there are."""
    heads, eos = 3, 7
    count, generator = (ngram_size - 1) * heads, torch.Generator().manual_seed(1)
    multipliers = 2 * torch.randint(1 << 43, (4,), generator=generator)[:ngram_size] + 1
    moduli = torch.randint(10, 20_000_000, (count,), generator=generator)
    constants = {
        "multipliers": multipliers, "moduli": moduli, "offsets": moduli.cumsum(0) - moduli}
    sizes = {"ngram_size": ngram_size, "heads_per_ngram": heads, "eos": eos}
    both = []
    for which in (0, 1):
        window = SlotPlanes(
            torch.zeros(6, ngram_size - 1, dtype=torch.int64, device=device),
            torch.full((6, 4), 99, dtype=torch.int64, device=device))
        call = bind("ngram_rows", sizes, window=window,
                    **{name: each.to(device) for name, each in constants.items()})[which]
        both.append((call, window))
    for step in STEPS:
        batch = slot_batch(*step)
        drawn = torch.randint(248_320, (batch.num_tokens,), generator=generator)
        drawn[::3] = torch.randint(6, 9, drawn[::3].shape, generator=generator)
        batch.token_ids[: batch.num_tokens] = drawn
        for name in ("token_ids", "row_start", "slots", "replay", "certain"):
            setattr(batch, name, getattr(batch, name).to(device))
        found, expected = (
            call(batch, torch.full((batch.num_tokens, count), -1, device=device))
            for call, _ in both
        )
        assert torch.equal(found, expected)
        assert torch.equal(both[0][1].committed[1:], both[1][1].committed[1:])
        assert torch.equal(both[0][1].record[1:], both[1][1].record[1:])
