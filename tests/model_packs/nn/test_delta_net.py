"""Delta networks beside those of `transformers`, with their states carried along."""

import pytest
import torch
from attrs import evolve, frozen
from transformers import DynamicCache, PretrainedConfig
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextLinearAttention
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.store import StateStore
from ninfer_nn import (
    ChannelDeltaNet,
    GatedDeltaNet,
    channel_delta_net_states,
    delta_net_states,
)

HIDDEN, TOKENS = 48, 75
SIZES = {"num_key_heads": 3, "num_value_heads": 9, "key_dim": 24, "value_dim": 40}
CHANNEL_SIZES = {"num_heads": 3, "head_dim": 24}
STEPS = {
    "at once": [(75, None)],
    "chunks": [(64, None), (3, None), (1, None), (7, None)],
    "one by one": [(9, None)] + [(1, None)] * 66,
    "drafts": [(60, None), (4, 2), (4, 4), (4, 0), (4, 1), (1, None), (3, 3), (4, None)],
}


@frozen(eq=False)
class Kind:
    """A module of `transformers`, and how our block is made of its parameters."""

    module: torch.nn.Module
    config: PretrainedConfig
    parameters: dict
    states: tuple
    block: type
    options: dict


def by_head():
    """Gated DeltaNet: a decay a head."""
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN, linear_num_key_heads=3, linear_num_value_heads=9,
        linear_key_head_dim=24, linear_value_head_dim=40, linear_conv_kernel_dim=4,
        num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-4,
    )
    module = Qwen3_5GatedDeltaNet(config, 0)
    query, key, value = module.in_proj_qkv.weight.split((72, 72, 360))
    return Kind(module, config, {
        "query": query, "key": key, "value": value, "z": module.in_proj_z.weight,
        "a_projection": module.in_proj_a.weight, "b_projection": module.in_proj_b.weight,
        "convolution": module.conv1d.weight.squeeze(1).T, "a_log": module.A_log,
        "dt_bias": module.dt_bias, "norm": module.norm.weight, "output": module.out_proj.weight,
    }, delta_net_states(2, **SIZES, taps=4), GatedDeltaNet, SIZES)


def by_channel():
    """Kimi Delta Attention: a decay a channel, which has a lower bound."""
    config = Glm5NextTextConfig(
        hidden_size=HIDDEN, linear_num_heads=3, linear_head_dim=24,
        linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
        rms_norm_eps=1e-4, linear_lower_bound=-5.0, mlp_layer_types=["dense"],
    )
    module = Glm5NextTextLinearAttention(config, 0)
    gate = module.forget_gate
    return Kind(module, config, {
        "query": module.q_proj.weight, "key": module.k_proj.weight, "value": module.v_proj.weight,
        "beta": module.b_proj.weight, "decay_down": gate.f_a_proj.weight,
        "decay_up": gate.f_b_proj.weight, "gate_down": module.g_a_proj.weight,
        "gate_up": module.g_b_proj.weight, "convolution": module.conv1d.weight.squeeze(1).T,
        "a_log": gate.A_log, "dt_bias": gate.dt_bias, "norm": module.o_norm.weight,
        "output": module.o_proj.weight,
    }, channel_delta_net_states(2, **CHANNEL_SIZES, taps=4), ChannelDeltaNet,
        {**CHANNEL_SIZES, "lower_bound": -5.0})


@pytest.fixture(scope="module", params=[by_head, by_channel], ids=lambda make: make.__name__)
def kind(request):
    """With weights at random."""
    torch.manual_seed(11)
    kind = request.param()
    for parameter in kind.module.eval().requires_grad_(False).parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 1.0)
    return kind


@pytest.fixture
def block(context, kind):
    """Our block on the same weights, in layer 1 of 2, and the states of that layer."""
    codec = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
    sizes = {"num_pages": 1, "max_sequences": 1, "max_context": 256, "max_verify_rows": 4}
    store = StateStore(kind.states, codec, **sizes)
    assert store.open().slot == 1
    parameters = {f"net/{name}": each.detach() for name, each in kind.parameters.items()}
    context = evolve(context, parameters=parameters, store=store)
    net = kind.block(context, "net", layer=1, **kind.options, eps=kind.config.rms_norm_eps)
    return net, [store.view(spec.name, 1).committed[1] for spec in kind.states]


@pytest.mark.parametrize("steps", STEPS)
def test_against_transformers(steps, kind, block, drive):
    net, states = block
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(12))
    cache = DynamicCache(config=kind.config)
    expected = kind.module(x.unsqueeze(0), cache=cache)[0]

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
