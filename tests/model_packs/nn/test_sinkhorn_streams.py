"""Sinkhorn hyper-connections beside the one of `transformers`."""

import torch
from attrs import evolve
from transformers.models.glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextHyperConnection

from ninfer_nn import SinkhornStreams, StreamMean

HIDDEN, STREAMS, TOKENS = 20, 4, 11


@torch.no_grad()
def test_as_transformers(context):
    torch.manual_seed(3)
    config = Glm5NextTextConfig(hidden_size=HIDDEN, hc_mult=STREAMS, num_hidden_layers=4)
    oracle = Glm5NextTextHyperConnection(config)
    oracle.fn.normal_(std=0.3)
    oracle.base.normal_(), oracle.scale.normal_()
    parameters = {"hc/coefficients": oracle.fn, "hc/base": oracle.base, "hc/scale": oracle.scale}
    sizes = {"num_streams": STREAMS, "hidden_size": HIDDEN}
    context = evolve(context, parameters=parameters)
    block = SinkhornStreams(
        context, "hc", **sizes, iterations=config.hc_sinkhorn_iters, eps=config.hc_eps,
        norm_eps=config.rms_norm_eps,
    )
    streams, output = 2 * torch.randn(TOKENS, STREAMS, HIDDEN), torch.randn(TOKENS, HIDDEN)
    post, comb, read = (each[0] for each in oracle(streams[None]))
    expected = post[..., None] * output[:, None] + comb.transpose(-1, -2) @ streams
    ours = streams.flatten(1).clone()
    assert torch.allclose(block.read(ours), read, atol=1e-5)
    block.write(output, ours)
    assert torch.allclose(ours, expected.flatten(1), atol=1e-5)
    mean = StreamMean(context, **sizes, out="mean")
    assert torch.allclose(mean(ours), expected.mean(1), atol=1e-5)
