"""``channel_delta_rule``: values against FP64, bits against chunking, what records hold."""

import torch

from ninfer_core.ops.gated_delta_rule import reference
from ninfer_core.state.views import SlotPlanes

H, DK, DV, COUNT = 3, 5, 7, 40
WIDTHS = (H * DK, H * DK, H * DV, H * DK, H)
SIZES = {"num_heads": H, "key_dim": DK, "value_dim": DV, "eps": 1e-3, "lower_bound": -5.0}


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_inputs(count=COUNT):
    return [2 * randn(count, width, seed=2 + i) for i, width in enumerate(WIDTHS)]


def make(make_request):
    """Slots 0 to 2; what must not be read is NaN."""
    planes = SlotPlanes(torch.zeros(3, H, DK, DV), torch.full((3, 4, sum(WIDTHS[1:])), torch.nan))
    planes.committed[0] = planes.committed[2] = torch.nan
    request = make_request("channel_delta_rule", sizes=SIZES)
    op = reference.bind_channel(request, planes, randn(H, seed=8), randn(H * DK, seed=9))

    def call(*arguments):
        return op(*arguments, torch.full((arguments[-1].num_tokens, H * DV), torch.nan))

    return planes, call


def log_decays(f):
    """FP64 ``[T, H, Dk]``."""
    rates, dt_bias = randn(H, seed=8).double().exp(), randn(H * DK, seed=9).double()
    inner = rates.view(H, 1) * (f.double() + dt_bias).view(-1, H, DK)
    return SIZES["lower_bound"] / (1 + (-inner).exp())


def oracle(q, k, v, f, b):
    """Outputs ``[T, H Dv]`` and the last state ``[H, Dk, Dv]``, FP64, head by head."""
    outputs, states = [], []
    for head in range(H):
        state = torch.zeros(DK, DV, dtype=torch.float64)
        outputs.append([])
        for t in range(len(q)):
            query, key = (x[t].double().view(H, DK)[head] for x in (q, k))
            key, query = (x / (x @ x + SIZES["eps"]).sqrt() for x in (key, query))
            state = torch.diag(log_decays(f)[t, head].exp()) @ state
            error = v[t].double().view(H, DV)[head] - state.T @ key
            state = state + torch.outer(key, b[t, head].double().sigmoid() * error)
            outputs[-1].append(state.T @ query / DK**0.5)
        outputs[-1] = torch.stack(outputs[-1])
        states.append(state)
    return torch.cat(outputs, 1), torch.stack(states)


def test_values(steps, make_request, drive):
    planes, op = make(make_request)
    out = drive(op, make_inputs(), steps)
    expected, state = oracle(*make_inputs())
    assert torch.allclose(out.double(), expected, atol=2e-6)
    assert torch.allclose(planes.committed[1].double(), state, atol=2e-6)
    assert planes.committed[::2].isnan().all() and planes.record[::2].isnan().all()


def test_bits_depend_on_the_tokens_alone(steps, make_request, drive):
    results = []
    for each in (steps, [(1, None)] * 40):
        planes, op = make(make_request)
        results.append((drive(op, make_inputs(), each), planes.committed[1]))
    for own, expected in zip(*results, strict=True):
        assert own.equal(expected)


def test_records_hold_what_the_contract_says(make_request, slot_batch):
    planes, op = make(make_request)
    q, k, v, f, b = make_inputs(2)
    op(q, k, v, f, b, slot_batch((1, 2, 0, False)))
    keys, values, decays, betas = planes.record[1, :2].split((H * DK, H * DV, H * DK, H), 1)
    heads = k.view(2, H, DK)
    normalised = heads / (heads.square().sum(-1, keepdim=True) + SIZES["eps"]).sqrt()
    assert torch.allclose(keys, normalised.flatten(1), atol=1e-6) and values.equal(v)
    assert torch.allclose(decays.double(), log_decays(f).flatten(1), atol=1e-6)
    assert torch.allclose(betas, b.sigmoid(), atol=1e-6)
    assert planes.record[1, 2:].isnan().all() and not planes.committed[1].any()


def test_decays_stay_finite_and_above_their_bound(make_request, slot_batch):
    planes, op = make(make_request)
    q, k, v, f, b = make_inputs(4)
    f[:] = torch.tensor([1e4, -1e4, 80.0, -80.0]).unsqueeze(1)
    assert op(q, k, v, f, b, slot_batch((1, 4, 0, False))).isfinite().all()
    decays = planes.record[1, :, H * (DK + DV) : H * (DK + DV + DK)]
    assert decays.ge(-5).all() and decays.le(0).all()
