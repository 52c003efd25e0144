"""The convolution and the gated delta rules over slots, against the references, and bit for bit."""

from functools import partial

import pytest
import torch

from ninfer_core.api import KernelRequest
from ninfer_core.state.views import SlotPlanes
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.bindings import slots
from ninfer_profile_cpu.kernels.pool import pool

NUM_SLOTS = 5
ROUNDS = (  # rows of (slot, tokens, replayed, certain); slot 4 is nobody's
    [(1, 70, 0, True), (2, 4, 0, False), (3, 1, 0, True)],
    [(3, 4, 0, False), (1, 2, 0, True), (2, 1, 3, True)],
    [(2, 3, 0, False), (3, 4, 0, False), (1, 33, 0, True)],
    [(1, 1, 0, True), (2, 2, 1, False), (3, 5, 4, True)],
    [(2, 6, 2, True), (1, 3, 0, False)],
)
STEPS = {
    "at once": [(80, None)],
    "one by one": [(1, None)] * 80,
    "chunks": [(7, None), (1, None), (32, None), (2, None), (38, None)],
    "drafts": [(12, None), (4, 3), (4, 4), (3, 0), (1, None), (4, 1), (2, 2), (57, None)],
}


def make_planes(shape, record_shape, record_rows=4):
    """As in a store, with bytes of other things between the slots; what must not be read is NaN."""
    size, record_size = (torch.Size(each).numel() for each in (shape, record_shape))
    committed = torch.full((NUM_SLOTS, size + 3), torch.nan)
    committed[1:4, :size] = 0
    record = torch.full((NUM_SLOTS, record_rows * record_size + 5), torch.nan)
    return SlotPlanes(
        committed[:, :size].view(NUM_SLOTS, *shape),
        record[:, : record_rows * record_size].view(NUM_SLOTS, record_rows, *record_shape),
    )


def convolution(factory, randn, width=37, taps=4, dilation=1):
    """``(call, widths of inputs, planes)`` of an op made by a factory."""
    planes = make_planes(((taps - 1) * dilation, width), (width,))
    request = KernelRequest("causal_conv1d", "cpu", "float32", sizes={"dilation": dilation})
    op = factory(request, weight=randn(taps, width, seed=5), planes=planes)
    return partial(into_poison, op, width), [width], planes


def delta_rule(factory, randn, heads=(2, 6), dims=(24, 40), record_rows=4):
    (hk, hv), (dk, dv) = heads, dims
    sizes = {
        "num_key_heads": hk, "num_value_heads": hv, "key_dim": dk, "value_dim": dv, "eps": 1e-3
    }
    planes = make_planes((hv, dk, dv), (hk * dk + hv * dv + 2 * hv,), record_rows)
    request = KernelRequest("gated_delta_rule", "cpu", "float32", sizes=sizes)
    constants = {"a_log": randn(hv, seed=8), "dt_bias": randn(hv, seed=9)}
    op = factory(request, planes=planes, **constants)
    return partial(into_poison, op, hv * dv), [hk * dk, hk * dk, hv * dv, hv, hv], planes


def channel_rule(factory, randn, heads=2, dims=(24, 40), record_rows=4, lower_bound=-5.0):
    dk, dv = dims
    sizes = {"num_heads": heads, "key_dim": dk, "value_dim": dv, "eps": 1e-3,
             "lower_bound": lower_bound}
    widths = [heads * dk, heads * dk, heads * dv, heads * dk, heads]
    planes = make_planes((heads, dk, dv), (sum(widths[1:]),), record_rows)
    request = KernelRequest("channel_delta_rule", "cpu", "float32", sizes=sizes)
    constants = {"a_log": randn(heads, seed=8), "dt_bias": randn(heads * dk, seed=9)}
    op = factory(request, planes=planes, **constants)
    return partial(into_poison, op, heads * dv), widths, planes


def into_poison(op, width, *arguments):
    """Run an op on rows with something between them; nothing but the result may be written."""
    *inputs, batch = arguments
    wide = torch.full((batch.num_tokens, width + 7), torch.nan)
    result = op(*inputs, batch, wide[:, 3:-4])
    assert wide[:, :3].isnan().all() and wide[:, -4:].isnan().all()
    return result.clone()


def strided(randn, count, widths, seed):
    """Inputs that are columns of one matrix, as those of a block are."""
    return (2 * randn(count, sum(widths) + 5, seed=seed))[:, 2:-3].split(widths, dim=1)


CONVOLUTIONS = (1, 2, 1), (37, 1, 3), (16, 4, 1), (530, 4, 3), (1100, 9, 1), (24, 2, 5)
"""Channels, taps, columns from one to the next."""
HEADS_AND_DIMS = (
    ((1, 1), (1, 1)), ((2, 6), (5, 7)), ((1, 3), (24, 40)), ((3, 3), (17, 33)), ((1, 2), (128, 128))
)
CASES = {
    f"convolution {width} x {taps}, {dilation}": (
        "causal_conv1d", convolution, {"width": width, "taps": taps, "dilation": dilation}
    )
    for width, taps, dilation in CONVOLUTIONS
} | {
    f"delta rule {heads} {dims}": ("gated_delta_rule", delta_rule, {"heads": heads, "dims": dims})
    for heads, dims in HEADS_AND_DIMS
} | {
    f"channel rule {heads} {dims}": (
        "channel_delta_rule", channel_rule, {"heads": heads, "dims": dims}
    )
    for heads, dims in ((1, (1, 1)), (6, (5, 7)), (3, (24, 40)), (3, (17, 33)), (2, (128, 128)))
}


@pytest.fixture(params=CASES)
def case(request, randn):
    """``(op, make)``; ``make(factory)`` binds a case with planes of its own."""
    op, make, sizes = CASES[request.param]
    return op, partial(make, randn=randn, **sizes)


def own_factory(op):
    return getattr(slots, f"bind_{op}")


def test_rows_of_all_kinds(case, randn, slot_batch):
    op, make = case
    own, reference = make(own_factory(op)), make(CONTRACTS[op].reference.load())
    for number, rows in enumerate(ROUNDS):
        batch = slot_batch(*rows)
        inputs = strided(randn, batch.num_tokens, own[1], number)
        out, expected = own[0](*inputs, batch), reference[0](*inputs, batch)
        assert torch.allclose(out, expected, rtol=1e-5, atol=1e-5), number
        for kind in ("committed", "record"):
            state, wanted = getattr(own[2], kind), getattr(reference[2], kind)
            assert torch.allclose(state, wanted, rtol=1e-5, atol=1e-5, equal_nan=True), number
    for slot in (0, 4):
        assert own[2].committed[slot].isnan().all() and own[2].record[slot].isnan().all()


@pytest.mark.parametrize("steps", STEPS)
def test_bits_depend_on_the_tokens_alone(case, steps, randn, drive):
    """Not on chunks, replay or rejected drafts."""
    op, make = case
    results = []
    for each in (steps, "one by one"):
        call, widths, planes = make(own_factory(op))
        inputs = [randn(80, width, seed=number) for number, width in enumerate(widths)]
        results.append((drive(call, inputs, STEPS[each]), planes.committed[1]))
    for own, expected in zip(*results, strict=True):
        assert own.equal(expected)


def test_bits_do_not_depend_on_company_or_threads(case, randn, slot_batch):
    op, make = case
    results, before = [], pool().num_threads
    for num_threads in (1, 3):
        pool().set_num_threads(num_threads)
        call, widths, planes = make(own_factory(op))
        results.append([])
        for number, rows in enumerate(ROUNDS):
            inputs, start = strided(randn, sum(row[1] for row in rows), widths, number), 0
            for group in [rows] if num_threads == 3 else [[row] for row in rows]:
                end = start + sum(row[1] for row in group)
                batch = slot_batch(*group)
                results[-1].append(call(*[x[start:end] for x in inputs], batch))
                start = end
        results[-1] = [torch.cat(results[-1]), planes.committed[1:4], planes.record[1:4]]
    pool().set_num_threads(before)
    for own, expected in zip(*results, strict=True):
        assert torch.equal(own.nan_to_num(), expected.nan_to_num())


RULES = {"gated_delta_rule": delta_rule, "channel_delta_rule": channel_rule}


@pytest.mark.parametrize("rule", RULES)
def test_many_drafts_at_once(rule, randn, drive):
    """More uncertain tokens than a block has otherwise."""
    results = []
    for steps in ([(45, 41), (45, 39)], [(80, None)]):
        call, widths, _ = RULES[rule](own_factory(rule), randn, record_rows=45)
        inputs = [randn(80, width, seed=number) for number, width in enumerate(widths)]
        results.append(drive(call, inputs, steps))
    assert results[0].equal(results[1])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gate", [-1e4, -90.0, 90.0, 1e4])
def test_extreme_gates(gate, rule, randn, slot_batch):
    """Decays of 0 and 1, betas of 0 and 1, keys of zeros: finite, and as the reference has them."""
    results = []
    for factory in (own_factory(rule), CONTRACTS[rule].reference.load()):
        call, widths, planes = RULES[rule](factory, randn)
        q, k, v, a, b = (randn(5, width, seed=number) for number, width in enumerate(widths))
        k[2], a[1:4], b[3:] = 0, gate, gate
        results.append((call(q, k, v, a, b, slot_batch((1, 5, 0, True))), planes.committed[1]))
    for own, expected in zip(*results, strict=True):
        assert own.isfinite().all() and torch.allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_a_broken_state_is_seen(randn, slot_batch):
    call, widths, planes = delta_rule(slots.bind_gated_delta_rule, randn)
    planes.committed[1, 0, 3, 5] = torch.nan
    inputs = [randn(1, width, seed=number) for number, width in enumerate(widths)]
    heads = call(*inputs, slot_batch((1, 1, 0, True))).view(6, 40)
    assert heads[0, 5].isnan() and heads.isnan().sum() == 1
