"""The gated delta network beside the one of `transformers`, with its state carried along."""

import pytest
import torch
from attrs import evolve
from transformers import DynamicCache
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.store import StateStore
from ninfer_nn import GatedDeltaNet, delta_net_states

HIDDEN, TOKENS = 48, 75
SIZES = {"num_key_heads": 3, "num_value_heads": 9, "key_dim": 24, "value_dim": 40}
CHUNKS = {
    "at once": [(75, None)],
    "chunks": [(64, None), (3, None), (1, None), (7, None)],
    "one by one": [(9, None)] + [(1, None)] * 66,
    "drafts": [(60, None), (4, 2), (4, 4), (4, 0), (4, 1), (1, None), (3, 3), (4, None)],
}


@pytest.fixture(scope="module")
def oracle():
    """The module of `transformers`, with weights at random."""
    torch.manual_seed(11)
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN, linear_num_key_heads=3, linear_num_value_heads=9,
        linear_key_head_dim=24, linear_value_head_dim=40, linear_conv_kernel_dim=4,
        num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-4,
    )
    module = Qwen3_5GatedDeltaNet(config, 0).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 1.0)
    return module, config


@pytest.fixture
def block(context, oracle):
    """Our block on the same weights, in layer 1 of 2, and the states of that layer."""
    module, config = oracle
    query, key, value = module.in_proj_qkv.weight.split((72, 72, 360))
    parameters = {
        "query": query, "key": key, "value": value, "z": module.in_proj_z.weight,
        "a_projection": module.in_proj_a.weight, "b_projection": module.in_proj_b.weight,
        "convolution": module.conv1d.weight.squeeze(1).T, "a_log": module.A_log,
        "dt_bias": module.dt_bias, "norm": module.norm.weight, "output": module.out_proj.weight,
    }
    specs = delta_net_states(2, **SIZES, taps=4)
    codec = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
    sizes = {"num_pages": 1, "max_sequences": 1, "max_context": 256, "max_verify_rows": 4}
    store = StateStore(specs, codec, **sizes)
    assert store.open().slot == 1
    parameters = {f"gdn/{name}": each for name, each in parameters.items()}
    context = evolve(context, parameters=parameters, store=store)
    net = GatedDeltaNet(context, "gdn", layer=1, **SIZES, eps=config.rms_norm_eps)
    return net, [store.view(spec.name, 1).committed[1] for spec in specs]


@pytest.mark.parametrize("steps", CHUNKS)
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

    out = drive(call, [x], CHUNKS[steps])
    assert (out - expected).abs().max() < 1e-5 * expected.abs().max()
    if CHUNKS[steps][-1][1] is None:
        last = cache.get_conv_state(0, state_idx=0)[0, :, -3:].T
        assert torch.allclose(states[0], last, atol=1e-5)
        state = cache.get_recurrent_state(0, state_idx=0)[0]
        assert (states[1] - state).abs().max() < 1e-5 * state.abs().max()
