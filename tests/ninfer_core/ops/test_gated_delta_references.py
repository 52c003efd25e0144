"""References of the ops of gated delta networks: values against FP64, bits against chunking."""

import pytest
import torch
from torch.nn.functional import conv1d, silu, softplus

from ninfer_core.ops.causal_conv1d import reference as convolution
from ninfer_core.ops.gated_delta_rule import reference as delta_rule
from ninfer_core.ops.gated_rmsnorm import reference as gated_rmsnorm
from ninfer_core.ops.sigmoid_gate import reference as sigmoid_gate
from ninfer_core.state.views import SlotPlanes
from ninfer_profile_cpu import chunked_delta_rule

C, TAPS = 10, 4
HK, HV, DK, DV = 2, 6, 5, 7
SIZES = {
    "num_key_heads": HK, "num_value_heads": HV, "key_dim": DK, "value_dim": DV, "eps": 1e-3,
}


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_planes(shape, record_shape):
    """Slots 0 to 2; what must not be read is NaN."""
    planes = SlotPlanes(torch.zeros(3, *shape), torch.full((3, 4, *record_shape), torch.nan))
    planes.committed[0] = planes.committed[2] = torch.nan
    return planes


def into_poison(op, width):
    """``(*inputs, batch)``: an op that writes to a fresh buffer."""
    def call(*arguments):
        return op(*arguments, torch.full((arguments[-1].num_tokens, width), torch.nan))
    return call


def make_convolution(make_request, taps=TAPS, **sizes):
    window = (taps - 1) * sizes.get("dilation", 1)
    weight, planes = randn(taps, C, seed=5), make_planes((window, C), (C,))
    request = make_request("causal_conv1d", sizes=sizes)
    return weight, planes, convolution.bind(request, weight, planes)


@pytest.mark.parametrize(
    ("taps", "sizes"), [(1, {}), (2, {}), (4, {}), (9, {}), (4, {"dilation": 3})])
def test_convolution(taps, sizes, steps, make_request, drive):
    weight, planes, op = make_convolution(make_request, taps, **sizes)
    x, dilation = randn(40, C), sizes.get("dilation", 1)
    out = drive(into_poison(op, C), [x], steps)
    padded = torch.cat((torch.zeros((taps - 1) * dilation, C), x)).double()
    kernel = weight.double().T.unsqueeze(1)
    expected = silu(conv1d(padded.T, kernel, groups=C, dilation=dilation).T)
    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert planes.committed[1].equal(padded[40:].float())
    assert planes.committed[::2].isnan().all() and planes.record[::2].isnan().all()


def make_inputs(count=40, seed=2):
    widths = (HK * DK, HK * DK, HV * DV, HV, HV)
    return [2 * randn(count, width, seed=seed + i) for i, width in enumerate(widths)]


def make_delta_rule(make_request, module=delta_rule):
    planes = make_planes((HV, DK, DV), (HK * DK + HV * DV + 2 * HV,))
    a_log, dt_bias = randn(HV, seed=8), randn(HV, seed=9)
    request = make_request("gated_delta_rule", sizes=SIZES)
    return planes, into_poison(module.bind(request, planes, a_log, dt_bias), HV * DV)


def delta_rule_oracle(q, k, v, a, b):
    """Outputs ``[T, Hv Dv]`` and the last state ``[Hv, Dk, Dv]``, FP64, head by head."""
    a_log, dt_bias = randn(HV, seed=8).double(), randn(HV, seed=9).double()
    outputs, states = [], []
    for head in range(HV):
        key_head, state = head // (HV // HK), torch.zeros(DK, DV, dtype=torch.float64)
        outputs.append([])
        for t in range(len(q)):
            key = k[t].double().view(HK, DK)[key_head]
            query = q[t].double().view(HK, DK)[key_head]
            key, query = (x / (x @ x + SIZES["eps"]).sqrt() for x in (key, query))
            state = state * (-a_log[head].exp() * softplus(a[t, head] + dt_bias[head])).exp()
            error = v[t].double().view(HV, DV)[head] - state.T @ key
            state = state + torch.outer(key, b[t, head].double().sigmoid() * error)
            outputs[-1].append(state.T @ query / DK**0.5)
        outputs[-1] = torch.stack(outputs[-1])
        states.append(state)
    return torch.cat(outputs, 1), torch.stack(states)


@pytest.mark.parametrize("module", [delta_rule, chunked_delta_rule])
def test_delta_rule(steps, module, make_request, drive):
    planes, op = make_delta_rule(make_request, module)
    inputs = make_inputs()
    out = drive(op, inputs, steps)
    expected, state = delta_rule_oracle(*inputs)
    assert torch.allclose(out.double(), expected, atol=2e-6)
    assert torch.allclose(planes.committed[1].double(), state, atol=2e-6)
    assert planes.committed[::2].isnan().all() and planes.record[::2].isnan().all()


@pytest.mark.parametrize("kind", ["convolution", "delta rule"])
def test_bits_depend_on_the_tokens_alone(kind, steps, make_request, drive):
    results = []
    for each in (steps, [(1, None)] * 40):
        if kind == "convolution":
            _, planes, op = make_convolution(make_request)
            call, inputs = into_poison(op, C), [randn(40, C)]
        else:
            planes, call = make_delta_rule(make_request)
            inputs = make_inputs()
        results.append((drive(call, inputs, each), planes.committed[1]))
    for own, expected in zip(*results, strict=True):
        assert own.equal(expected)


def test_records_hold_what_the_contract_says(make_request, slot_batch):
    planes, op = make_delta_rule(make_request)
    q, k, v, a, b = make_inputs(2)
    op(q, k, v, a, b, slot_batch((1, 2, 0, False)))
    keys, values, log_decays, betas = planes.record[1, :2].split((HK * DK, HV * DV, HV, HV), 1)
    heads = k.view(2, HK, DK)
    normalised = heads / (heads.square().sum(-1, keepdim=True) + SIZES["eps"]).sqrt()
    assert torch.allclose(keys, normalised.flatten(1), atol=1e-6) and values.equal(v)
    expected = -randn(HV, seed=8).exp() * softplus(a + randn(HV, seed=9))
    assert torch.allclose(log_decays, expected, atol=1e-6)
    assert torch.allclose(betas, b.sigmoid(), atol=1e-6)
    assert planes.record[1, 2:].isnan().all() and not planes.committed[1].any()


@pytest.mark.parametrize("module", [delta_rule, chunked_delta_rule])
def test_rows_of_all_kinds_in_one_step(module, make_request, slot_batch):
    """Together as each alone, without the outputs of other rows."""
    steps = [[(1, 3, 0, False), (2, 5, 0, True)], [(2, 1, 0, True), (1, 2, 2, False)],
             [(1, 1, 1, True), (1, 0, 0, True), (2, 2, 0, False)]]
    results = []
    for together in (True, False):
        planes, op = make_delta_rule(make_request, module)
        planes.committed[2] = 0
        results.append([])
        for number, rows in enumerate(steps):
            inputs, start = make_inputs(sum(row[1] for row in rows), number), 0
            for group in [rows] if together else [[row] for row in rows if row[1]]:
                end = start + sum(row[1] for row in group)
                results[-1].append(op(*[x[start:end] for x in inputs], slot_batch(*group)))
                start = end
        results[-1] = [torch.cat(results[-1]), planes.committed[1:], planes.record[1:].nan_to_num()]
    for own, expected in zip(*results, strict=True):
        assert torch.allclose(own, expected, atol=1e-6)


@pytest.mark.parametrize(("activation", "act"), [("silu", silu), ("sigmoid", torch.sigmoid)])
def test_gated_rmsnorm(activation, act, make_request):
    sizes = {"eps": 0.1, "num_heads": 3, "activation": activation}
    weight, x, gate = randn(6), randn(5, 18), randn(5, 40)[:, 11:29]
    op = gated_rmsnorm.bind(make_request("gated_rmsnorm", sizes=sizes), weight)
    heads = x.double().view(5, 3, 6)
    normed = heads / (heads.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
    expected = normed.flatten(1) * act(gate.double())
    assert torch.allclose(op(x, gate, torch.full_like(x, torch.nan)).double(), expected, atol=1e-6)
    assert op(x, gate, x) is x and torch.allclose(x.double(), expected, atol=1e-6)


@pytest.mark.parametrize("width", [1, 9])
def test_sigmoid_gate(width, make_request):
    x, gate = randn(4, 9), randn(4, 20)[:, 3 : 3 + width]
    op, expected = sigmoid_gate.bind(make_request("sigmoid_gate")), x * gate.sigmoid()
    assert torch.allclose(op(x, gate, torch.full_like(x, torch.nan)), expected, atol=1e-6)
    assert op(x, gate, x) is x and torch.allclose(x, expected, atol=1e-6)
