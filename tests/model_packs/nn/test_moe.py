"""The mixture of experts beside the one of `transformers`."""

import pytest
import torch
from attrs import evolve
from transformers.models.glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextMoE
from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from ninfer_nn import RMSNorm, SparseMoE

HIDDEN, EXPERTS, TOP_K, INNER, SHARED, TOKENS = 40, 6, 3, 20, 28, 30


@pytest.fixture(scope="module")
def oracle():
    """The module of `transformers`, with weights at random."""
    torch.manual_seed(9)
    config = Qwen3_5MoeTextConfig(
        hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
        moe_intermediate_size=INNER, shared_expert_intermediate_size=SHARED,
        experts_implementation="eager",
    )
    module = Qwen3_5MoeSparseMoeBlock(config).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return module


@pytest.fixture
def moe_parameters(oracle):
    """The same weights by our names."""
    shared = oracle.shared_expert
    parameters = {
        "router": oracle.gate.weight, "shared_score": oracle.shared_expert_gate.weight,
        "shared/gate": shared.gate_proj.weight, "shared/up": shared.up_proj.weight,
        "shared/down": shared.down_proj.weight,
    }
    for expert in range(EXPERTS):
        gate, up = oracle.experts.gate_up_proj[expert].chunk(2)
        name, down = f"experts/{expert}", oracle.experts.down_proj[expert]
        parameters |= {f"{name}/gate": gate, f"{name}/up": up, f"{name}/down": down}
    return {f"moe/{name}": each for name, each in parameters.items()}


@pytest.fixture
def block(context, moe_parameters):
    context = evolve(context, parameters=moe_parameters)
    return SparseMoE(context, "moe", num_experts=EXPERTS, top_k=TOP_K)


@pytest.mark.parametrize("chunks", [[30], [16, 1, 13], [1] * 30], ids=str)
def test_as_transformers(chunks, block, oracle):
    x = 2 * torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    expected = oracle(x[None])[0]
    stream, start = torch.ones(TOKENS, HIDDEN), 0
    for count in chunks:
        rows = slice(start, start + count)
        block(x[rows], stream[rows])
        start += count
    assert torch.allclose(stream - 1, expected, rtol=0, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("kernels", ["context", "fused_context"])
def test_through_a_norm(kernels, request, moe_parameters, oracle):
    """Router and experts read what is normed, whether or not a kernel takes norm and router."""
    weight = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(2)) / 4
    context = evolve(
        request.getfixturevalue(kernels), parameters={**moe_parameters, "norm": weight})
    norm = RMSNorm(context, "norm", eps=1e-6, out="normed", unit_offset=True)
    block = SparseMoE(context, "moe", num_experts=EXPERTS, top_k=TOP_K, norm=norm)
    x = 2 * torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    normed = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * (1 + weight)
    expected, stream = x + oracle(normed[None])[0], x.clone()
    block(stream, stream)
    bound = {each.request.op for each in context.binder.choices}
    assert ("moe_router" in bound, "moe_route" in bound) == (
        (True, False) if kernels == "fused_context" else (False, True))
    assert torch.allclose(stream, expected, rtol=0, atol=1e-5 * expected.abs().max())


@pytest.fixture(scope="module")
def sigmoid_oracle():
    """A module with sigmoids, a bias for the choice, clamped products and nothing scaled."""
    torch.manual_seed(9)
    config = Glm5NextTextConfig(
        hidden_size=HIDDEN, n_routed_experts=EXPERTS, num_experts_per_tok=TOP_K,
        moe_intermediate_size=INNER, swiglu_limit=0.8, num_hidden_layers=4,
    )
    module = Glm5NextTextMoE(config).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=parameter.shape[-1] ** -0.5)
    module.gate.e_score_correction_bias.normal_(std=0.3)
    return module


@pytest.mark.parametrize("adds", [True, False])
def test_sigmoids_as_transformers(adds, context, sigmoid_oracle):
    gate, shared = sigmoid_oracle.gate, sigmoid_oracle.shared_experts
    parameters = {
        "router": gate.weight, "router_bias": gate.e_score_correction_bias,
        **{f"shared/{part}": getattr(shared, f"{part}_proj").weight
           for part in ("gate", "up", "down")},
    }
    for expert in range(EXPERTS):
        upper, lower = sigmoid_oracle.experts.gate_up_proj[expert].chunk(2)
        parts = {"gate": upper, "up": lower, "down": sigmoid_oracle.experts.down_proj[expert]}
        parameters |= {f"experts/{expert}/{part}": each for part, each in parts.items()}
    parameters = {f"moe/{name}": each for name, each in parameters.items()}
    block = SparseMoE(
        evolve(context, parameters=parameters), "moe", num_experts=EXPERTS, top_k=TOP_K,
        scoring="sigmoid", scale=2.5, shared_score=False, limit=0.8, adds=adds,
    )
    x = 2 * torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    expected = sigmoid_oracle(x[None])[0] + int(adds)
    stream = torch.ones(TOKENS, HIDDEN) if adds else torch.full((TOKENS, HIDDEN), torch.nan)
    block(x, stream)
    assert torch.allclose(stream, expected, rtol=0, atol=1e-5 * expected.abs().max())
