"""Each op of steps by itself."""

import json

import pytest
import torch

from ninfer_bench.recording import Call, RecordingBinder
from ninfer_core.api import KernelRequest


def test_ops_of_every_step_are_measured(ninfer, tiny_model, once):
    code, out, _ = ninfer(
        "bench", "ops", tiny_model, "--rows", "2", "--widths", "1,2", "--contexts", "70",
        "--prefill", "64", "--json", "-p", "ninfer_bench.plugin")
    assert code == 0
    found = json.loads(out)
    assert [step["step"] for step in found["steps"]] == [
        "decode 2 x 1 at 70", "decode 2 x 2 at 70", "prefill 64 at 70"]
    for step in found["steps"]:
        ops = {each["op"] for each in step["ops"]}
        assert {"linear", "rmsnorm", "paged_attention", "embedding"} <= ops
        assert step["ops_seconds"] > 0 and step["seconds"] > 0
        assert all(each["calls"] > 0 and each["nbytes"] > 0 for each in step["ops"])
        assert all(each["kernel"].startswith("reference.") for each in step["ops"])
    one, two = ({each["op"]: each for each in step["ops"]} for step in found["steps"][:2])
    assert two["linear"]["flops"] == 2 * one["linear"]["flops"] > 0
    assert one["paged_attention"]["nbytes"] > 2 * 70 * 16  # the keys alone


@pytest.mark.parametrize("op", ["moe_mlp", "shared_moe_mlp"])
def test_of_experts_those_count_that_tokens_meet(op, make_weight):
    """Four of eight, and whatever all tokens read."""
    names = ["gate_up", "down"] + (["shared_gate_up", "shared_down"] if op.startswith("s") else [])
    shapes = {"gate_up": (8, 32, 16), "down": (8, 16, 16), "shared_gate_up": (32, 16),
              "shared_down": (16, 16)}
    constants = {name: make_weight(torch.zeros(shapes[name])) for name in names}
    request = KernelRequest(op, "cpu", "float32", sizes={"top_k": 4, "num_experts": 8})
    call = Call(request, "any", constants, print, ())
    shared = 3 * 16 * 16 if len(names) > 2 else 0
    assert call.weight_bytes(1) == 4 * (4 * 3 * 16 * 16 + shared)
    assert call.weight_bytes(2) == 4 * (6 * 3 * 16 * 16 + shared)
    assert call.matrix_flops(2) == 2 * 2 * (4 * 3 * 16 * 16 + shared)


def test_calls_are_noted_only_while_asked(ninfer):
    from ninfer_core.plugin_host import PluginSelection, load_plugins

    registry = load_plugins(PluginSelection(names=())).registry
    binder = RecordingBinder(registry.kernels, registry.contracts, device="cpu")
    gate = binder.bind(KernelRequest("sigmoid_gate", "cpu", "float32"))
    x, out = torch.ones(2, 4), torch.empty(2, 4)
    gate(x, x, out)
    with binder.recording() as calls:
        gate(x, x, out)
    gate(x, x, out)
    [call] = calls
    assert (call.request.op, call.kernel) == ("sigmoid_gate", "reference.sigmoid_gate")
    assert call.activation_bytes() == 2 * 8 * 4 and call.weight_bytes(2) == 0
    out.zero_()
    call()
    assert out.eq(torch.sigmoid(x)).all()
