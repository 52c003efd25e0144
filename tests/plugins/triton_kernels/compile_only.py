"""Compile what bound ops launch, for a card that is not there: a process of its own.

``python compile_only.py CAPABILITY [CASE ...]`` prints a line of JSON for each kernel that `CASES`
launch: registers, bytes of spills and of shared memory, and its matrix instructions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import asdict, evolve

from ninfer_core.api import (
    KernelRequest,
    KVCodecSpec,
    PagedStateSpec,
    SamplingParams,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.sampling.verify import Drafted
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import SlotPlanes
from ninfer_pack_smollm2.plugin import FORMAT, LAYOUT
from ninfer_triton_kernels.bindings.sampling import judge_drafts
from ninfer_triton_kernels.compiling import compiling_for, facts_of
from ninfer_triton_kernels.plugin import ninfer_kernels
from ninfer_triton_kernels.plugin import ninfer_weight_layouts as own_layouts

KERNELS = {spec.name: spec for spec in ninfer_kernels()}
SPECS = {spec.name: spec for spec in [*ninfer_weight_formats(), FORMAT]}
LAYOUTS = {spec.name: spec for spec in [*ninfer_weight_layouts(), *own_layouts(), LAYOUT]}
STORED = {
    "bf16": "contiguous_le_v1", "fp32": "contiguous_le_v1", "q4_g64_fp16": "row_split_k128_v1",
    "q5_g64_fp16": "row_split_k128_v1", "q6_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1", "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "fp8_e4m3fn_g128_fp32": "row_scale_g128_v1", "nvfp4": "block_scale_k16_plain_v1",
    "q4_1_g32_fp16": "half_split_k32_v1",
}
CODECS = {"bf16": "Bf16Codec", "int8": "Int8Codec", "fp8": "Fp8Codec"}


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def weight(name: str, *shape: int, stored: str = "") -> Weight:
    stored = stored or STORED[name]
    layout = LAYOUTS[stored].layout.load()()
    planes = {
        plane.name: empty(*plane.shape, dtype=getattr(torch, plane.dtype))
        for plane in layout.planes(name, shape)
    }
    info = WeightInfo(shape, SPECS[name], stored)
    return Weight(info, planes, SPECS[name].codec.load()(), layout)


def bind(
    op: str, sizes: dict[str, Any] | None = None, codec: str = "", *, name: str = "",
    **constants: Any,
) -> Any:
    kernel = KERNELS[name or f"triton.{op}"]
    given = [each if isinstance(each, tuple) else (each,) for each in constants.values()]
    weights = tuple(each.info for one in given for each in one if isinstance(each, Weight))
    request = KernelRequest(op, "cuda", "bfloat16", 90, weights, codec, 4096, sizes or {})
    reason = kernel.accepts.load()(request)
    assert reason is None, reason
    return kernel.factory.load()(request, **constants)


def batch(tokens: int, pages: int = 512) -> StepBatch:
    made = StepBatch.allocate(
        max_tokens=tokens, max_rows=8, max_pages=pages, max_logits=8, device="meta")
    made.num_tokens, made.num_rows = tokens, 1
    return made


def planes(codec: str, kv_heads: int, head_dim: int) -> Any:
    shape = (kv_heads, head_dim)
    of_tokens = StatePlane("key", shape), StatePlane("value", shape)
    spec = KVCodecSpec(codec, f"ninfer_core.state.codecs:{CODECS[codec]}")
    return view_of(PagedStateSpec("kv", 1, of_tokens), spec)


def index_planes(dim: int, block: int) -> Any:
    keys = StatePlane("index_key", (dim,), block)
    unused = KVCodecSpec("bf16", "ninfer_core.state.codecs:Bf16Codec")
    return view_of(PagedStateSpec("index", 1, (keys,), "float32"), unused)


def view_of(state: PagedStateSpec, kv: KVCodecSpec) -> Any:
    store = StateStore((state,), kv, num_pages=8, max_sequences=1, max_context=64,
                       max_verify_rows=1, device="meta")
    return store.view(state.name, 0)


def products(name: str, rows: int, depth: int, tokens: int) -> None:
    out = empty(tokens, rows)
    bind("linear", weight=weight(name, rows, depth), bias=None)(empty(tokens, depth), out, out)
    swiglu = bind("swiglu", weight=weight(name, rows, depth))
    swiglu(empty(tokens, depth), empty(tokens, rows // 2))


def group(depth: int, tokens: int, **heights: int) -> None:
    """Products of one input, formats and rows."""
    weights = tuple(weight(name, rows, depth) for name, rows in heights.items())
    product = bind("linear_group", weights=weights, biases=(None,) * len(weights))
    product(empty(tokens, depth), empty(tokens, sum(heights.values())))


def head(name: str, rows: int, depth: int) -> None:
    linear = bind("linear", weight=weight(name, rows, depth), bias=None)
    linear(empty(1, depth), empty(1, rows, dtype=torch.float32))
    ids = empty(4, dtype=torch.int64)
    bind("embedding", weight=weight(name, rows, depth))(ids, empty(4, depth))


def attention(
    codec: str, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int
) -> None:
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
             "rotary_dim": rotary_dim, "eps": 1e-6, "unit_offset": True, "scale": head_dim**-0.5}
    tables = {name: empty(4096, rotary_dim // 2, dtype=torch.float32) for name in ("cos", "sin")}
    axes, norm = empty(rotary_dim // 2, dtype=torch.int64), empty(head_dim)
    layer = planes(codec, kv_heads, head_dim)
    append = bind("rope_kv_append", sizes, codec, planes=layer, axes=axes, query_norm=norm,
                  key_norm=norm, **tables)
    step = batch(tokens)
    q, kv = empty(tokens, heads * head_dim), empty(tokens, kv_heads * head_dim)
    append(q, kv, kv, step)
    attend = bind("paged_attention", sizes, codec, planes=layer)
    attend(q, step, empty(tokens, heads * head_dim))


def rows(width: int) -> None:
    x, gate = empty(4, width), empty(4, width)
    bind("rmsnorm", {"eps": 1e-6, "unit_offset": True}, weight=empty(width))(x, x)
    bind("sigmoid_gate")(x, gate, x)
    sizes = {"eps": 1e-6, "num_heads": width // 128, "activation": "silu"}
    bind("gated_rmsnorm", sizes, weight=empty(128))(x, gate, x)


def slots(key_heads: int, value_heads: int, dim: int, tokens: int) -> None:
    keys, values, step = key_heads * dim, value_heads * dim, batch(tokens)
    channels = 2 * keys + values
    tails = SlotPlanes(empty(9, 3, channels, dtype=torch.float32),
                       empty(9, 4, channels, dtype=torch.float32))
    x = empty(tokens, channels)
    bind("causal_conv1d", weight=empty(4, channels), planes=tails)(x, step, empty(tokens, channels))
    sizes = {"num_key_heads": key_heads, "num_value_heads": value_heads, "key_dim": dim,
             "value_dim": dim, "eps": 1e-6}
    width = keys + values + 2 * value_heads
    states = SlotPlanes(empty(9, value_heads, dim, dim, dtype=torch.float32),
                        empty(9, 4, width, dtype=torch.float32))
    gates = {name: empty(value_heads, dtype=torch.float32) for name in ("a_log", "dt_bias")}
    q, v, a = empty(tokens, keys), empty(tokens, values), empty(tokens, value_heads)
    for name in ("triton.gated_delta_rule", "triton.gated_delta_rule_blocks"):
        rule = bind("gated_delta_rule", sizes, name=name, planes=states, **gates)
        rule(q, q, v, a, a, step, empty(tokens, values))


def moe(wide: str, narrow: str, tokens: int) -> None:
    sizes = {"num_experts": 256, "top_k": 8}
    ids = empty(tokens, 8, dtype=torch.int32)
    weights = empty(tokens, 8, dtype=torch.float32)
    bind("moe_route", sizes, bias=None)(empty(tokens, 256), ids, weights)
    banks = {"gate_up": weight(wide, 256 * 1024, 2048), "down": weight(narrow, 256 * 2048, 512)}
    x = empty(tokens, 2048)
    if tokens == 1:
        router = {"norm": empty(2048), "weight": weight("bf16", 257, 2048)}
        norm = {"eps": 1e-6, "unit_offset": True, "scoring": "softmax"}
        bind("moe_router", {**sizes, **norm}, **router)(x, x, empty(tokens, 257), ids, weights)
    bind("moe_mlp", sizes, **banks)(x, ids, weights, empty(tokens, 2048))
    common = {"shared_gate_up": weight("q8_g32_fp16", 1024, 2048),
              "shared_down": weight("q8_g32_fp16", 2048, 512)}
    mlp = bind("shared_moe_mlp", sizes, **banks, **common)
    mlp(x, ids, weights, empty(tokens, 1), x, x)


def sparse(codec: str, heads: int, kv_heads: int, head_dim: int, index_heads: int) -> None:
    """One layer of Qwen3.8-Flash-Next, or with 32 heads of its indexer of GLM-5.3-Flash."""
    is_latent, step, dim = index_heads == 32, batch(4), 128
    layer, index = planes(codec, kv_heads, head_dim), index_planes(dim, 4)
    if is_latent:
        layer = evolve(layer, planes={"key": layer.planes["key"]})
    tail = SlotPlanes(empty(9, 64, 2 * dim if is_latent else dim + 3, dtype=torch.float32),
                      empty(9, 4, 0, dtype=torch.float32))
    sizes = {"num_heads": index_heads, "head_dim": dim, "block": 4, "eps": 1e-6, "rotary_dim": 64,
             "unit_offset": True, "budget": 512, "scale": dim**-0.5}
    queries, keys, norm = empty(4, index_heads * dim), empty(4, dim), empty(dim)
    if is_latent:
        append = bind("softmax_index_append", sizes, "float32", planes=index, tail=tail,
                      norm=norm, norm_bias=norm, position_bias=empty(4, dim))
        append(keys, keys, step)
        key = {"num_kv_heads": kv_heads, "head_dim": head_dim}
        bind("key_append", key, codec, planes=layer)(empty(4, head_dim), step)
        rule = {"num_heads": heads, "key_dim": 128, "value_dim": 128, "eps": 1e-6,
                "lower_bound": -5.0}
        width, state = heads * 128, (heads, 128, 128)
        states = SlotPlanes(empty(9, *state, dtype=torch.float32),
                            empty(9, 4, 3 * width + heads, dtype=torch.float32))
        x, out = empty(4, width), empty(4, width)
        gates = {"a_log": empty(heads, dtype=torch.float32), "dt_bias": empty(width)}
        mix = bind("channel_delta_rule", rule, planes=states, **gates)
        mix(x, x, x, x, empty(4, heads), step, out)
        matrices = weight("bf16", heads * head_dim, 256)
        project = bind("head_projection", {"num_heads": heads}, weight=matrices)
        project(empty(4, heads * 256), empty(4, heads * head_dim))
    else:
        tables = {name: empty(4096, 32, dtype=torch.float32) for name in ("cos", "sin")}
        append = bind("mean_index_append", sizes, "float32", planes=index, tail=tail,
                      query_norm=norm, key_norm=norm, axes=empty(32, dtype=torch.int64), **tables)
        append(queries, keys, step)
    weights = empty(4, index_heads, dtype=torch.float32) if is_latent else None
    blocks = empty(4, 512, dtype=torch.int32)
    bind("index_select", sizes, "float32", planes=index)(queries, weights, step, blocks)
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "block": 4,
             "scale": 1 / 16}
    q = empty(4, heads * head_dim)
    bind("selected_attention", sizes, codec, planes=layer)(q, blocks, step, empty(*q.shape))


def block_scaled() -> None:
    """A gated matrix and one that adds to the stream, 1,024 tokens of a prompt."""
    wide, narrow = (
        weight("nvfp4", *shape, stored="fragments_m16_v1")
        for shape in ((34816, 5120), (5120, 17408)))
    x, hidden = empty(1024, 5120), empty(1024, 17408)
    bind("swiglu", name="triton.swiglu_block_scaled", weight=wide)(x, hidden)
    linear = bind("linear", name="triton.linear_block_scaled", weight=narrow, bias=None)
    linear(hidden, x, x)


def streams(count: int, width: int, tokens: int) -> None:
    """Around a block of GLM-5.3-Flash, and its router."""
    numbers = count * (count + 2)
    sizes = {"num_streams": count, "iterations": 20, "eps": 1e-6, "norm_eps": 1e-5}
    fp32 = {"dtype": torch.float32}
    wide, row, mix = empty(tokens, count * width), empty(tokens, width), empty(tokens, 20, **fp32)
    bind("linear", weight=weight("bf16", numbers, count * width), bias=None)(
        wide, products := empty(tokens, numbers, **fp32))
    read = bind("sinkhorn_read", sizes, base=empty(numbers, **fp32), scale=empty(3, **fp32))
    read(products, wide, row, mix)
    bind("sinkhorn_write", sizes)(row, mix, wide)
    bind("stream_mean", sizes)(wide, row)
    sizes = {"num_experts": 288, "top_k": 8, "scoring": "sigmoid", "scale": 2.5}
    route = bind("moe_route", sizes, bias=empty(288, **fp32))
    route(empty(tokens, 288, **fp32), empty(tokens, 8, dtype=torch.int32), empty(tokens, 8, **fp32))


def gated_streams(count: int, width: int, rank: int, tokens: int) -> None:
    """Around a block of Qwen3.8-Flash-Next, and its n-grams."""
    wide, row, step = empty(tokens, count * width), empty(tokens, width), batch(tokens)
    sizes = {"num_streams": count, "groups": count, "eps": 1e-6, "unit_offset": True, "scale": 0.25}
    bind("grouped_rmsnorm", sizes, weight=empty(count * width))(wide, empty(*wide.shape))
    bind("scaled_silu", sizes)(low := empty(tokens, rank), low)
    bind("stream_read", sizes)(wide, wide, row)
    bind("stream_add", sizes)(row, empty(tokens, count), wide)
    bind("signed_sqrt_gate", sizes)(wide, wide, row, wide)
    window = SlotPlanes(empty(9, 2, dtype=torch.int64), empty(9, 4, dtype=torch.int64))
    constants = {"multipliers": 3, "moduli": 16, "offsets": 16}
    hash = bind(
        "ngram_rows", {"ngram_size": 3, "heads_per_ngram": 8, "eos": 248_044}, window=window,
        **{name: empty(size, dtype=torch.int64) for name, size in constants.items()})
    hash(step, ids := empty(tokens, 16, dtype=torch.int64))
    for name in ("nvfp4", "fp8_e4m3fn_row_bf16"):
        table = weight(name, 320_001_536, width // 16)
        bind("embedding", weight=table)(ids.flatten(), empty(16 * tokens, width // 16))
    tails = SlotPlanes(empty(9, 9, count * width, dtype=torch.float32),
                       empty(9, 4, count * width, dtype=torch.float32))
    convolve = bind("causal_conv1d", {"dilation": 3}, weight=empty(4, count * width), planes=tails)
    convolve(wide, step, empty(*wide.shape))


def sampling(size: int) -> None:
    """Greedy tokens of a step; rows of top-k, of all tokens and of top-p, alone and together, with
    penalties; drawn drafts."""
    judge = bind("sampling", {"vocab_size": size})
    logits = empty(4, size, dtype=torch.float32)
    judge.likeliest(logits)
    judge.likeliest(logits, empty(size, dtype=torch.int64))
    tokens = empty(1, 4, dtype=torch.int64)
    judge.accept(tokens, tokens[:, 1:])
    history = TokenHistory(size, (), "meta")
    warm = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5)
    rows = [SampleRow(evolve(warm, top_k=k), 9, history=history, pending=(1,) * k)
            for k in (20, 0, 1, 20)]
    rows[1] = evolve(rows[1], params=evolve(rows[1].params, top_p=1.0))
    for some in (rows[:1], rows[1:2], rows):
        judge.sample(logits[: len(some)], some)
        judge.probabilities(logits[: len(some)], some)
        judge.propose(logits[: len(some)], some)
    alone = evolve(rows[0], params=evolve(warm, top_k=0))
    judge._split(logits[:1], [alone], None, is_read=True)
    target = judge.probabilities(logits, rows)
    judge_drafts(target, [Drafted(tuple(rows), (1, 2, 3), target[:3])])


FORMATS = [name for name in STORED if name not in ("fp32", "q4_1_g32_fp16")]
CASES: dict[str, Callable[[], None]] = {
    "small-fp32": partial(products, "fp32", 72, 160, 1),
    "small-q5": partial(products, "q5_g64_fp16", 64, 160, 1),
    "smollm2": lambda: products("q4_1_g32_fp16", 3072, 576, 1),
    "smollm2-head": lambda: head("q8_g32_fp16", 49152, 576),
    "smollm2-attention": lambda: attention("bf16", 9, 3, 64, 64, 1),
    **{f"group-27b-{tokens}": partial(
        group, 5120, tokens, q4_g64_fp16=4096, q5_g64_fp16=12288, bf16=96) for tokens in (1, 32)},
    "group-27b-attention": partial(group, 5120, 1, q4_g64_fp16=7168, q5_g64_fp16=7168),
    "group-nvfp4": partial(group, 5120, 1, nvfp4=16384, bf16=96),
    "group-fp8": partial(group, 5120, 1, fp8_e4m3fn_row_bf16=16384, bf16=96),
    "group-35b": partial(group, 2048, 1, q8_g32_fp16=12288, bf16=64),
    "rows-5120": lambda: rows(5120),
    "nvfp4-block-scaled": block_scaled,
    "sampling": partial(sampling, 248_320),
    **{f"slots-{tokens}": partial(slots, 16, 48, 128, tokens) for tokens in (1, 512)},
    **{f"moe-{wide}-{tokens}": partial(moe, wide, narrow, tokens)
       for wide, narrow in (("nvfp4", "nvfp4"), ("q4_g64_fp16", "q5_g64_fp16"))
       for tokens in (1, 512)},
    **{f"{name}-{tokens}": partial(products, name, 34816, 5120, tokens)
       for name in FORMATS for tokens in (1, 32, 512)},
    **{f"{name}-narrow": partial(products, name, 5120, 6144, 1) for name in FORMATS},
    **{f"sparse-{codec}": partial(sparse, codec, 24, 2, 256, 4) for codec in CODECS},
    **{f"streams-{tokens}": partial(streams, 4, 4096, tokens) for tokens in (1, 512)},
    **{f"gated-streams-{tokens}": partial(gated_streams, 4, 2560, 320, tokens)
       for tokens in (1, 512)},
    **{f"latent-{codec}": partial(sparse, codec, 64, 1, 512, 32) for codec in CODECS},
    **{f"attention-{codec}-{tokens}": partial(attention, codec, 24, 4, 256, 64, tokens)
       for codec in CODECS for tokens in (1, 512)},
}


def main(capability: int, names: list[str]) -> None:
    with compiling_for(capability) as compiled:
        for name in names or CASES:
            compiled.clear()
            CASES[name]()
            for kernel in compiled.values():
                print(json.dumps({"case": name, **asdict(facts_of(kernel))}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
