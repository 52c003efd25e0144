"""The delta network with decays by channel beside the one of `transformers`."""

import pytest
import torch
from attrs import evolve
from transformers import DynamicCache
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextLinearAttention

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.store import StateStore
from ninfer_nn import ChannelDeltaNet, channel_delta_net_states

HIDDEN, HEADS, HEAD_DIM, TOKENS = 48, 3, 24, 75
STEPS = {
    "at once": [(75, None)],
    "chunks": [(64, None), (3, None), (1, None), (7, None)],
    "one by one": [(9, None)] + [(1, None)] * 66,
    "drafts": [(60, None), (4, 2), (4, 4), (4, 0), (4, 1), (1, None), (3, 3), (4, None)],
}


@pytest.fixture(scope="module")
def oracle():
    """The module of `transformers`, with weights at random."""
    torch.manual_seed(11)
    config = Glm5NextTextConfig(
        hidden_size=HIDDEN, linear_num_heads=HEADS, linear_head_dim=HEAD_DIM,
        linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
        rms_norm_eps=1e-4, linear_lower_bound=-5.0, mlp_layer_types=["dense"],
    )
    module = Glm5NextTextLinearAttention(config, 0).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 1.0)
    return module, config


@pytest.fixture
def block(context, oracle):
    """Our block on the same weights, in layer 1 of 2, and the states of that layer."""
    module, config = oracle
    gate = module.forget_gate
    parameters = {
        "query": module.q_proj.weight, "key": module.k_proj.weight, "value": module.v_proj.weight,
        "beta": module.b_proj.weight, "decay_down": gate.f_a_proj.weight,
        "decay_up": gate.f_b_proj.weight, "gate_down": module.g_a_proj.weight,
        "gate_up": module.g_b_proj.weight, "convolution": module.conv1d.weight.squeeze(1).T,
        "a_log": gate.A_log, "dt_bias": gate.dt_bias, "norm": module.o_norm.weight,
        "output": module.o_proj.weight,
    }
    specs = channel_delta_net_states(2, num_heads=HEADS, head_dim=HEAD_DIM, taps=4)
    codec = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
    sizes = {"num_pages": 1, "max_sequences": 1, "max_context": 256, "max_verify_rows": 4}
    store = StateStore(specs, codec, **sizes)
    assert store.open().slot == 1
    parameters = {f"kda/{name}": each for name, each in parameters.items()}
    context = evolve(context, parameters=parameters, store=store)
    net = ChannelDeltaNet(
        context, "kda", layer=1, num_heads=HEADS, head_dim=HEAD_DIM, eps=config.rms_norm_eps,
        lower_bound=config.linear_lower_bound,
    )
    return net, [store.view(spec.name, 1).committed[1] for spec in specs]


@pytest.mark.parametrize("steps", STEPS)
def test_against_transformers(steps, oracle, block, drive):
    module, config = oracle
    net, states = block
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(12))
    cache = DynamicCache(config=config)
    expected = module(x.unsqueeze(0), cache=cache)[0]

    def call(part, batch):
        stream = torch.ones_like(part)
        net(part, batch, stream)
        return stream - 1

    out = drive(call, [x], STEPS[steps])
    assert (out - expected).abs().max() < 1e-5 * expected.abs().max()
    if STEPS[steps][-1][1] is None:
        last = cache.get_conv_state(0, state_idx=0)[0, :, -3:].T
        assert torch.allclose(states[0], last, atol=1e-5)
        state = cache.get_recurrent_state(0, state_idx=0)[0]
        assert (states[1] - state).abs().max() < 1e-5 * state.abs().max()
