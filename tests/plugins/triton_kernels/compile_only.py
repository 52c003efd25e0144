"""Compile what bound ops launch, for a card that is not there: a process of its own.

``python compile_only.py CAPABILITY [CASE ...]`` prints a line of JSON for each kernel that `CASES`
launch: registers, bytes of spills and of shared memory, and its matrix instructions.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from ninfer_core.api import KernelRequest, KVCodecSpec, PagedStateSpec, StatePlane, WeightInfo
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import SlotPlanes
from ninfer_pack_smollm2.plugin import FORMAT, LAYOUT
from ninfer_triton_kernels.bindings import cache, stored
from ninfer_triton_kernels.plugin import ninfer_kernels

KERNELS = {spec.name: spec for spec in ninfer_kernels()}
SPECS = {spec.name: spec for spec in [*ninfer_weight_formats(), FORMAT]}
LAYOUTS = {spec.name: spec for spec in [*ninfer_weight_layouts(), LAYOUT]}
PROCESSORS = {90: 132, 120: 170, 121: 48}
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


def weight(name: str, *shape: int) -> Weight:
    layout = LAYOUTS[STORED[name]].layout.load()()
    planes = {
        plane.name: empty(*plane.shape, dtype=getattr(torch, plane.dtype))
        for plane in layout.planes(name, shape)
    }
    info = WeightInfo(shape, SPECS[name], STORED[name])
    return Weight(info, planes, SPECS[name].codec.load()(), layout)


def bind(
    op: str, sizes: dict[str, Any] | None = None, codec: str = "", *, name: str = "",
    **constants: Any,
) -> Any:
    kernel = KERNELS[name or f"triton.{op}"]
    weights = tuple(each.info for each in constants.values() if isinstance(each, Weight))
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
    state = PagedStateSpec("kv", 1, (StatePlane("key", shape), StatePlane("value", shape)))
    spec = KVCodecSpec(codec, f"ninfer_core.state.codecs:{CODECS[codec]}")
    store = StateStore((state,), spec, num_pages=8, max_sequences=1, max_context=64,
                       max_verify_rows=1, device="meta")
    return store.view("kv", 0)


def products(name: str, rows: int, depth: int, tokens: int) -> None:
    out = empty(tokens, rows)
    bind("linear", weight=weight(name, rows, depth), bias=None)(empty(tokens, depth), out, out)
    swiglu = bind("swiglu", weight=weight(name, rows, depth))
    swiglu(empty(tokens, depth), empty(tokens, rows // 2))


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
    bind("moe_route", sizes)(empty(tokens, 256), ids, weights)
    banks = {"gate_up": weight(wide, 256 * 1024, 2048), "down": weight(narrow, 256 * 2048, 512)}
    x = empty(tokens, 2048)
    bind("moe_mlp", sizes, **banks)(x, ids, weights, empty(tokens, 2048))


FORMATS = [name for name in STORED if name not in ("fp32", "q4_1_g32_fp16")]
CASES: dict[str, Callable[[], None]] = {
    "small-fp32": partial(products, "fp32", 72, 160, 1),
    "small-q5": partial(products, "q5_g64_fp16", 64, 160, 1),
    "smollm2": lambda: products("q4_1_g32_fp16", 3072, 576, 1),
    "smollm2-head": lambda: head("q8_g32_fp16", 49152, 576),
    "smollm2-attention": lambda: attention("bf16", 9, 3, 64, 64, 1),
    "rows-5120": lambda: rows(5120),
    **{f"slots-{tokens}": partial(slots, 16, 48, 128, tokens) for tokens in (1, 512)},
    **{f"moe-{wide}-{tokens}": partial(moe, wide, narrow, tokens)
       for wide, narrow in (("nvfp4", "nvfp4"), ("q4_g64_fp16", "q5_g64_fp16"))
       for tokens in (1, 512)},
    **{f"{name}-{tokens}": partial(products, name, 34816, 5120, tokens)
       for name in FORMATS for tokens in (1, 32, 512)},
    **{f"{name}-narrow": partial(products, name, 5120, 6144, 1) for name in FORMATS},
    **{f"attention-{codec}-{tokens}": partial(attention, codec, 24, 4, 256, 64, tokens)
       for codec in CODECS for tokens in (1, 512)},
}


def facts(kernel: Any) -> dict[str, Any]:
    waits = "griddepcontrol.wait" in kernel.asm["ptx"]
    assert waits or not kernel.metadata.launch_pdl, f"{kernel.name} begins early and never waits"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True,
                              text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", text)}
    kinds = sorted(set(re.findall(r"(?:mma\.sync|wgmma\.mma_async)[.\w:]*", kernel.asm["ptx"])))
    return {"kernel": kernel.name, "registers": found["REG"], "spills": found["STACK"],
            "shared": kernel.metadata.shared + found["SHARED"],
            "warps": kernel.metadata.num_warps, "instructions": kinds}


def main(capability: int, names: list[str]) -> None:
    target = GPUTarget("cuda", capability, 32)
    driver = mock.Mock()
    driver.get_current_target.return_value = target
    driver.get_current_device.return_value = 0
    driver.get_current_stream.return_value = 0
    triton.runtime.driver.set_active(driver)
    compiled: dict[str, Any] = {}

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        compiled[kernel.hash] = kernel
        return kernel

    original, JITFunction.run = JITFunction.run, compile_only
    stored.num_processors = lambda device: PROCESSORS[capability]
    stored.capability = cache.capability = lambda device: capability
    for name in names or CASES:
        compiled.clear()
        CASES[name]()
        for kernel in compiled.values():
            print(json.dumps({"case": name, **facts(kernel)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
