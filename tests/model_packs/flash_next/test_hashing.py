"""Constants of the hashes, and rows that they choose, are those of the real model."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_ops.ngram_rows import reference
from ninfer_pack_flash_next.hashing import moduli, multipliers, num_rows, offsets

EOS = 248_044
GOLDEN = {
    (9707,): [
        16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897,
        169641436, 182022480, 209277433, 237891023, 256841529, 277007269, 290665954, 300984276,
    ],
    (9707, 11, 1879): [
        6380558, 26411572, 56460672, 78566983, 94693008, 106742196, 124822692, 148942556,
        164226950, 190352573, 210933682, 238908951, 242182004, 265475238, 299910982, 312121804,
    ],
}
"""Last tokens of a sequence -> rows."""


def test_constants(real_config):
    assert multipliers(real_config, 0) == (23703573157769, 20109073645365, 8052911324071)
    primes = moduli(real_config, 0)
    assert primes[:3] == (20000003, 20000023, 20000033) and primes[-1] == 20000171
    assert offsets(real_config, 0)[-1] == 300001275
    assert sum(primes) == 320001446
    assert num_rows(real_config, 0) == 320001536


def test_a_second_layer_has_other_primes_and_multipliers(real_config):
    config = evolve(real_config, ple_layer_ids=(2, 5))
    first, second = (moduli(config, ordinal) for ordinal in (0, 1))
    assert min(second) > max(first) and len(second) == 16
    assert offsets(config, 1)[:2] == (0, second[0])
    assert {*multipliers(config, 0)}.isdisjoint(multipliers(config, 1))


@pytest.mark.parametrize("tokens", GOLDEN)
@pytest.mark.parametrize("before", [(), (5, EOS), (EOS, EOS)])
def test_golden_rows(real_config, tokens, before):
    """At the start of a sequence, and behind an end of text."""
    batch = StepBatch.allocate(max_tokens=8, max_rows=1, max_pages=1, max_logits=1)
    given = [*before, *tokens]
    batch.num_tokens, batch.num_rows = len(given), 1
    batch.token_ids[: len(given)] = torch.tensor(given)
    batch.row_start[1], batch.slots[0], batch.certain[0] = len(given), 1, 1
    window = SlotPlanes(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
    sizes = {"ngram_size": 3, "heads_per_ngram": 8, "eos": real_config.eos_token_id}
    op = reference.bind(
        KernelRequest("ngram_rows", "cpu", "float32", sizes=sizes), window,
        *(torch.tensor(make(real_config, 0)) for make in (multipliers, moduli, offsets)),
    )
    rows = op(batch, torch.zeros(len(given), 16, dtype=torch.int64))
    assert rows[-1].tolist() == GOLDEN[tokens]
