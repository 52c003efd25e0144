"""Blocks against their formulas in FP64; buffers that are shared and never replaced."""

import pytest
import torch

from ninfer_core.state.step import StepBatch
from ninfer_nn import (
    Attention,
    Embedding,
    Linear,
    OutputHead,
    RMSNorm,
    SwiGLU,
    rope_frequencies,
    rope_tables,
)


@pytest.fixture
def x():
    return torch.randn(70, 24, generator=torch.Generator().manual_seed(8))


def close(actual, expected):
    return torch.allclose(actual.double(), expected, atol=1e-4)


def test_linear_stacks_parameters_and_biases_by_rows(context, parameters, x):
    linear = Linear(context, "q", "k", out="both", bias=("q_bias", "k_bias"))
    expected = [x.double() @ parameters[n].double().T + parameters[f"{n}_bias"] for n in "qk"]
    assert close(linear(x), torch.cat(expected, 1))


@pytest.mark.parametrize("bias", [(), ("q_bias", "k_bias", "v_bias")])
def test_linear_of_neighbours_that_are_stored_otherwise(bias, context, parameters, x):
    parameters["k"] = parameters["k"].bfloat16()
    linear = Linear(context, "q", "k", "v", out="both", bias=bias)
    expected = torch.cat([x.double() @ parameters[n].double().T for n in "qkv"], 1)
    expected += torch.cat([parameters[n] for n in bias]) if bias else 0
    assert close(linear(x), expected)
    stream = torch.ones(70, 64)
    linear.add_to(stream, x)
    assert close(stream, 1 + expected)


def test_linear_adds_to_the_stream_in_place(context, parameters, x):
    stream = torch.ones(70, 32)
    assert Linear(context, "q").add_to(stream, x) is None
    assert close(stream, 1 + x.double() @ parameters["q"].double().T)


def test_embedding_and_norm(context, parameters):
    ids = torch.tensor([3, 49, 3])
    rows = Embedding(context, "table", out="stream")(ids)
    assert rows.equal(parameters["table"][ids])
    normed = RMSNorm(context, "norm", eps=1e-5, out="normed")(rows)
    mean = rows.double().square().mean(1, keepdim=True)
    assert close(normed, rows.double() / (mean + 1e-5).sqrt() * parameters["norm"])
    assert rows.equal(parameters["table"][ids])


@pytest.mark.parametrize("apart", [False, True])
def test_swiglu(apart, context, parameters, x):
    """``apart``: gate and up are stored in different formats."""
    if apart:
        parameters["up"] = parameters["up"].bfloat16()
    stream = torch.zeros(70, 24)
    SwiGLU(context, gate="gate", up="up", down="down")(x, stream)
    gate, up, down = (parameters[name].double() for name in ("gate", "up", "down"))
    inner = torch.nn.functional.silu(x.double() @ gate.T) * (x.double() @ up.T)
    assert torch.allclose(stream.double(), inner @ down.T, rtol=1e-4, atol=1e-3)


def test_output_head_reads_the_wanted_rows_only(context, parameters, x):
    head = OutputHead(context, "head")
    batch = StepBatch.allocate(max_tokens=80, max_rows=1, max_pages=1, max_logits=3)
    batch.logit_rows[:2], batch.num_logits = torch.tensor([69, 4]), 2
    poisoned = torch.full_like(x, torch.nan)
    poisoned[[69, 4]] = x[[69, 4]]
    logits = head(poisoned, batch)
    assert logits.dtype == torch.float32
    assert close(logits, x[[69, 4]].double() @ parameters["head"].double().T)
    assert head(x, batch).data_ptr() == logits.data_ptr()


def sequence_batch(start, count):
    batch = StepBatch.allocate(max_tokens=80, max_rows=1, max_pages=4, max_logits=1)
    batch.num_tokens, batch.num_rows = count, 1
    batch.positions[:count] = torch.arange(start, start + count)
    batch.rope_positions[:, :count] = batch.positions[:count]
    batch.row_start[1] = count
    batch.page_table[0] = torch.tensor([2, 4, 1, 3])
    return batch


def dense_attention(x, parameters, rope, scale, bias):
    """``[T, 24]`` of a whole sequence, 4 heads over 2, head_dim 8."""
    names = {"q": 4, "k": 2, "v": 2}
    heads = {}
    for name, count in names.items():
        projected = x.double() @ parameters[name].double().T
        projected += parameters[f"{name}_bias"] if bias else 0
        heads[name] = projected.view(-1, count, 8)
    if rope:
        cos, sin = (table[: x.shape[0]].double().unsqueeze(1) for table in (rope.cos, rope.sin))
        half = cos.shape[-1]
        for name in "qk":
            a, b, rest = heads[name].split((half, half, 8 - 2 * half), -1)
            heads[name] = torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
    k, v = (heads[name].repeat_interleave(2, 1) for name in "kv")
    scores = torch.einsum("thd,shd->hts", heads["q"], k) * scale
    causal = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
    mixed = torch.einsum("hts,shd->thd", scores.masked_fill(causal, -torch.inf).softmax(-1), v)
    return mixed.flatten(1) @ parameters["o"].double().T + (parameters["o_bias"] if bias else 0)


@pytest.mark.parametrize("rotary_dim", [0, 4, 8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_attention_over_two_steps(rotary_dim, bias, scale, context, parameters, x):
    rope = rope_tables(rope_frequencies(rotary_dim, 1e4), 256) if rotary_dim else None
    attention = Attention(
        context, query="q", key="k", value="v", output="o", planes=context.state("kv", 0),
        num_heads=4, num_kv_heads=2, head_dim=8, rope=rope, scale=scale,
        bias=("q_bias", "k_bias", "v_bias") if bias else (),
        output_bias=("o_bias",) if bias else (),
    )
    x, stream = x / 4, torch.ones(70, 24)
    for start, count in ((0, 64), (64, 6)):
        part = slice(start, start + count)
        attention(x[part], sequence_batch(start, count), stream[part])
    assert close(stream, 1 + dense_attention(x, parameters, rope, scale or 8**-0.5, bias))


def test_layers_share_buffers_and_steps_reuse_them(context, x):
    one = RMSNorm(context, "norm", eps=1e-5, out="normed")
    two = RMSNorm(context, "norm", eps=1e-5, out="normed")
    assert one(x).data_ptr() == two(x[:3]).data_ptr() == one(x).data_ptr()
