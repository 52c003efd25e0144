"""Ops on slot states: replay, advance and record, against the references."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
from attrs import evolve

from ninfer_conformance.tolerances import require_close
from ninfer_core.state.views import SlotPlanes
from ninfer_triton_kernels.bindings import slots
from ninfer_triton_kernels.bindings.descriptors import HOPPER
from ninfer_triton_kernels.bindings.launching import capability

DEVICE_CAPABILITY = capability(torch.device("cuda", 0)) if torch.cuda.is_available() else 0

ROWS = ((2, 3, 0, 1), (4, 1, 2, 1), (1, 4, 3, 0), (3, 0, 2, 1), (5, 2, 0, 0))
"""Slot, tokens, replayed tokens, whether certain."""

PROMPT_ROWS = ((3, 70, 2, 1), (1, 2, 1, 0), (5, 1, 3, 1))
"""A prompt in company: programs of a convolution take several of its tiles."""


@pytest.fixture
def planes(device):
    """``(committed shape, record shape) -> SlotPlanes`` of random fp32, of seven slots."""

    def make(shape, record, scale=1.0):
        generator = torch.Generator().manual_seed(9)
        committed = torch.randn(7, *shape, generator=generator) * scale
        return SlotPlanes(committed.to(device), torch.randn(7, 4, *record, generator=generator)
                          .to(device))

    return make


def copy(planes):
    return evolve(planes, committed=planes.committed.clone(), record=planes.record.clone())


def same_states(actual, expected, tolerance):
    require_close(actual.committed, expected.committed, "committed", tolerance)
    require_close(actual.record, expected.record, "record", tolerance)


def moved(batch, device):
    for name in ("row_start", "context_len", "slots", "replay", "certain", "token_row"):
        setattr(batch, name, getattr(batch, name).to(device))
    return batch


@pytest.fixture
def batch(slot_batch, device):
    return moved(slot_batch(*ROWS), device)


@pytest.mark.parametrize("rows, run", [(ROWS, 8), (PROMPT_ROWS, 8), (PROMPT_ROWS, 1)],
                         ids=["decode", "prompt", "parts"])
@pytest.mark.parametrize("dilation", [1, 3])
def test_causal_conv1d(
    dilation, rows, run, slot_batch, device, planes, bind, randn, poisoned, monkeypatch
):
    monkeypatch.setattr(slots, "PROMPT_PROGRAMS", 2)
    monkeypatch.setattr(slots, "CONVOLVED_RUN", run)
    batch = moved(slot_batch(*rows), device)
    width, count, sizes = 40, batch.num_tokens, {"dilation": dilation}
    both = [planes((3 * dilation, width), (width,)) for _ in range(2)]
    weight, x = randn(4, width, seed=3), randn(count, width + 8)[:, :width]
    outs = [
        bind("causal_conv1d", sizes, weight=weight, planes=each)[which](
            x, batch, poisoned(count, width))
        for which, each in enumerate(both)
    ]
    require_close(outs[0], outs[1], "convolved", "bf16")
    same_states(both[0], both[1], "exact")


def sizes(key_heads, value_heads, key_dim=16, value_dim=24):
    return {"num_key_heads": key_heads, "num_value_heads": value_heads, "key_dim": key_dim,
            "value_dim": value_dim, "eps": 1e-6}


@pytest.fixture
def rule(planes, bind, randn, device):
    """``() -> (kernel, planes), (reference, planes), inputs``"""

    def make(count, name="triton.gated_delta_rule", key_heads=2, heads=4, dims=(16, 24), pad=3):
        keys, values = dims[0] * key_heads, dims[1] * heads
        made = planes((heads, *dims), (keys + values + 2 * heads,), 0.3)
        recorded = made.record[..., :keys].unflatten(-1, (key_heads, dims[0]))
        made.record[..., :keys] = torch.nn.functional.normalize(recorded, dim=-1).flatten(-2)
        gates = made.record[..., -2 * heads :]
        gates[..., :heads] = -gates[..., :heads].abs()
        gates[..., heads:] = gates[..., heads:].sigmoid()
        both = made, copy(made)
        weights = {"a_log": randn(heads, seed=11).float(), "dt_bias": randn(heads, seed=12).float()}
        calls = [bind("gated_delta_rule", sizes(key_heads, heads, *dims), name=name, planes=each,
                      **weights)[which] for which, each in enumerate(both)]
        inputs = [randn(count, width + pad, seed=width)[:, :width]
                  for width in (keys, keys, values, heads, heads)]
        return zip(calls, both, strict=True), inputs

    return make


def test_gated_delta_rule(batch, rule, poisoned):
    both, inputs = rule(batch.num_tokens)
    results = [(call(*inputs, batch, poisoned(batch.num_tokens, 96)), states)
               for call, states in both]
    require_close(results[0][0], results[1][0], "read", "bf16")
    same_states(results[0][1], results[1][1], "fp32")


def test_replay_and_company_change_no_bit(rule, slot_batch, poisoned, device):
    """Four tokens at once, and as two steps of which the first was uncertain."""
    (pair, _), inputs = rule(4)
    call, states = pair
    start = copy(states)

    def step(first, last, *row):
        made = moved(slot_batch(*row), device)
        count = made.num_tokens
        return call(*[x[first:last][:count] for x in inputs], made, poisoned(count, 96))

    whole = step(0, 4, (3, 4, 0, 1))
    final = states.committed[3].clone()
    states.committed.copy_(start.committed)
    halves = [step(0, 2, (3, 2, 0, 0)), step(2, 4, (3, 2, 2, 1))]
    assert torch.equal(torch.cat(halves), whole)
    assert torch.equal(states.committed[3], final)


@pytest.fixture
def delta_net(planes, bind, randn):
    """``() -> (launch, states)``: convolution, rule and norm of a layer, ``launch(x, batch, out)``
    with ``x`` ``[T, 264]``."""

    def make():
        tails, states = planes((3, 160), (160,)), planes((4, 16, 24), (136,), 0.3)
        vectors = {name: randn(4, seed=len(name)).float() for name in ("a_log", "dt_bias")}
        convolve, _ = bind("causal_conv1d", weight=randn(4, 160, seed=3), planes=tails)
        read, _ = bind("gated_delta_rule", sizes(2, 4), planes=states, **vectors)
        norm, _ = bind("gated_rmsnorm", {"eps": 1e-6, "num_heads": 4, "activation": "silu"},
                       weight=randn(24))

        def launch(x, batch, out):
            mixed = convolve(x[:, :160], batch, x.new_empty(len(x), 160))
            q, k, v = mixed.split((32, 32, 96), 1)
            norm(read(q, k, v, x[:, 160:164], x[:, 164:168], batch, out), x[:, 168:], out)

        return launch, [tails.committed, tails.record, states.committed, states.record]

    return make


@pytest.mark.skipif(not torch.cuda.is_available(), reason="registers are of a card")
def test_registers_change_no_bit(batch, rule, poisoned, monkeypatch):
    kept = []
    for registers in slots.VALUE_REGISTERS.values():
        monkeypatch.setattr(slots, "_value_registers", lambda *_, given=registers: given)
        ((call, states), _), inputs = rule(batch.num_tokens)
        read = call(*inputs, batch, poisoned(batch.num_tokens, 96))
        kept.append([read, states.committed, states.record])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nothing overlaps without a card")
def test_launches_that_overlap_change_no_bit(delta_net, batch, randn):
    """Two layers in turn, waited for or not."""
    x, kept = randn(batch.num_tokens, 264), []
    for waits in (True, False):
        layers, outs = [delta_net() for _ in range(2)], []
        for launch, _ in layers * 8:
            outs.append(x.new_empty(batch.num_tokens, 96))
            launch(x, batch, outs[-1])
            if waits:
                torch.cuda.synchronize()
        kept.append([*outs, *layers[0][1], *layers[1][1]])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))


BY_BLOCKS = "triton.gated_delta_rule_blocks"
BLOCK_ROWS = ((2, 66, 0, 1), (4, 3, 2, 0), (1, 76, 1, 1), (5, 60, 0, 1))
BLOCK_CONTEXTS = (0, 7, 60, 8)
"""Whole blocks: one from the start, none, one behind 4 tokens and before 8, none."""


def test_whole_blocks(rule, slot_batch, poisoned, device):
    batch = slot_batch(*BLOCK_ROWS)
    batch.context_len[:4] = torch.tensor(BLOCK_CONTEXTS)
    batch = moved(batch, device)
    both, inputs = rule(batch.num_tokens, BY_BLOCKS, 1, 2)
    results = [(call(*inputs, batch, poisoned(batch.num_tokens, 48)), states)
               for call, states in both]
    require_close(results[0][0], results[1][0], "read", "bf16")
    same_states(results[0][1], results[1][1], "fp32")


@pytest.mark.skipif(DEVICE_CAPABILITY != HOPPER, reason="of capability 90")
@pytest.mark.parametrize("heads", [4, 48], ids=["group", "groups"])
def test_whole_blocks_on_hopper(heads, rule, slot_batch, poisoned, device, monkeypatch):
    monkeypatch.setattr(slots.delta_blocks, "advance_blocks", None)
    batch = slot_batch(*BLOCK_ROWS)
    batch.context_len[:4] = torch.tensor(BLOCK_CONTEXTS)
    batch = moved(batch, device)
    both, inputs = rule(batch.num_tokens, BY_BLOCKS, heads // 2, heads, (128, 128), 8)
    results = [(call(*inputs, batch, poisoned(batch.num_tokens, 128 * heads)), states)
               for call, states in both]
    require_close(results[0][0], results[1][0], "read", "bf16")
    same_states(results[0][1], results[1][1], "fp32")


@pytest.mark.skipif(DEVICE_CAPABILITY != HOPPER, reason="of capability 90")
def test_many_blocks_on_hopper(rule, slot_batch, poisoned, device):
    """More than there are slots for, twice the same bits."""
    batch = moved(slot_batch((3, 640, 0, 1)), device)
    both, inputs = rule(640, BY_BLOCKS, 2, 6, (128, 128), 8)
    (call, states), (reference, expected) = both
    start, kept = states.committed.clone(), []
    for _ in range(2):
        states.committed.copy_(start)
        kept.append((call(*inputs, batch, poisoned(640, 768)), states.committed.clone()))
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))
    require_close(kept[0][0], reference(*inputs, batch, poisoned(640, 768)), "read", "bf16")
    same_states(states, expected, "fp32")


@pytest.fixture
def other_processes():
    """Three that keep the card busy, so that programs are set aside for theirs half-way."""
    busy = ("import torch; a = torch.randn(4096, 4096, device='cuda')\n"
            "while True: [a @ a for _ in range(50)]; torch.cuda.synchronize()")
    running = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(3)]
    yield
    for each in running:
        each.kill()
        each.wait()


@pytest.mark.skipif(DEVICE_CAPABILITY != HOPPER, reason="of capability 90")
def test_prompts_of_real_size_keep_their_bits_beside_other_processes(
    rule, slot_batch, poisoned, device, other_processes
):
    """Without the end of its barrier, the preparation of blocks gave wrong ones in every hundredth
    launch."""
    batch = moved(slot_batch((3, 2048, 0, 1)), device)
    both, inputs = rule(2048, BY_BLOCKS, 16, 48, (128, 128), 8)
    (call, states), _ = both
    start, out = states.committed.clone(), poisoned(2048, 128 * 48)
    wrong, first = torch.zeros((), dtype=torch.bool, device=device), None
    begun = time.monotonic()
    while first is None or time.monotonic() < begun + 12:
        for _ in range(50):
            states.committed.copy_(start)
            call(*inputs, batch, out)
            first = first or (out.clone(), states.committed.clone())
            wrong |= (out != first[0]).any() | (states.committed != first[1]).any()
        torch.cuda.synchronize()
    assert not wrong


def test_company_and_chunks_of_whole_blocks_change_no_bit(rule, slot_batch, poisoned, device):
    """70 tokens from position 62 at once beside others, and alone in chunks that end where blocks
    do."""
    (pair, _), inputs = rule(78, BY_BLOCKS, 1, 2)
    call, states = pair
    start = states.committed.clone()

    def step(begin, *rows, contexts):
        batch = slot_batch(*rows)
        batch.context_len[: len(rows)] = torch.tensor(contexts)
        count = batch.num_tokens
        return call(*[x[begin:][:count] for x in inputs], moved(batch, device),
                    poisoned(count, 48))

    together = step(0, (3, 70, 0, 1), (2, 8, 0, 1), contexts=(62, 5))[:70]
    final = states.committed[3].clone()
    states.committed.copy_(start)
    alone = [step(0, (3, 2, 0, 1), contexts=(62,)), step(2, (3, 68, 0, 1), contexts=(64,))]
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(states.committed[3], final)


@pytest.mark.parametrize("likeness", [0.0, 1.0])
def test_inverse_of_a_block(likeness, bind, slot_batch, poisoned, planes, device):
    """Keys that are all alike, with beta 1 and no decay: powers of the system would overflow."""
    generator = torch.Generator().manual_seed(4)
    key = torch.randn(64, 16, generator=generator) * (1 - likeness) + likeness
    value = torch.randn(64, 24, generator=generator)
    gate, strength = torch.full((64, 1), -30.0), torch.full((64, 1), 30.0)
    inputs = [x.bfloat16().to(device) for x in (key, key, value, gate, strength)]
    gates = {name: torch.zeros(1, device=device) for name in ("a_log", "dt_bias")}
    both = [planes((1, 16, 24), (42,), 0.3) for _ in range(2)]
    calls = [bind("gated_delta_rule", sizes(1, 1), name=BY_BLOCKS, planes=each, **gates)[which]
             for which, each in enumerate(both)]
    batch = moved(slot_batch((3, 64, 0, 1)), device)
    results = [call(*inputs, batch, poisoned(64, 24)) for call in calls]
    require_close(results[0], results[1], "read", "bf16")
    require_close(both[0].committed, both[1].committed, "committed", "fp32")
