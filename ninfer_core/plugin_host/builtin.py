"""What the core itself registers, through the hooks that everybody else uses."""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core import api, ops
from ninfer_core.api import (
    AffineGroup,
    CommandSpec,
    FormatSpec,
    KernelSpec,
    KVCodecSpec,
    LayoutSpec,
    OpContract,
)
from ninfer_core.ops.contracts import contracts_in

NINFER_API = (api.API_VERSION.major, api.API_VERSION.minor)
_CONTRACTS = contracts_in(ops)
_FORMATS, _LAYOUTS = "ninfer_core.artifact.formats", "ninfer_core.artifact.layouts"
_DIRECT = {"bf16": 16, "fp32": 32, "int32": 32}
_GROUPED = {
    "q4_g64_fp16": AffineGroup(4, 64),
    "q5_g64_fp16": AffineGroup(5, 64),
    "q6_g64_fp16": AffineGroup(6, 64),
    "q8_g32_fp16": AffineGroup(8, 32),
}
_CODECS = {"fp32": "Fp32Codec", "bf16": "Bf16Codec", "int8": "Int8Codec", "fp8": "Fp8Codec"}


@api.hookimpl
def ninfer_weight_formats() -> list[FormatSpec]:
    return [
        *(FormatSpec(name, f"{_FORMATS}.direct:{name}", bits) for name, bits in _DIRECT.items()),
        *(FormatSpec(name, f"{_FORMATS}.grouped:{name}", group.bits + 16 / group.group, group)
          for name, group in _GROUPED.items()),
        FormatSpec("nvfp4", f"{_FORMATS}.minifloat:Nvfp4Codec", 4.5),
        FormatSpec("fp8_e4m3fn_row_bf16", f"{_FORMATS}.minifloat:Fp8RowCodec", 8),
        FormatSpec("fp8_e4m3fn_g128_fp32", f"{_FORMATS}.minifloat:Fp8GroupCodec", 8.25),
    ]


@api.hookimpl
def ninfer_weight_layouts() -> list[LayoutSpec]:
    layouts: dict[str, tuple[Iterable[str], str]] = {
        "contiguous_le_v1": (_DIRECT, "plain:ContiguousLayout"),
        "row_split_k128_v1": (_GROUPED, "row_split:RowSplitLayout"),
        "row_scale_v1": (["fp8_e4m3fn_row_bf16"], "plain:RowScaleLayout"),
        "row_scale_g128_v1": (["fp8_e4m3fn_g128_fp32"], "plain:RowGroupScaleLayout"),
        "block_scale_k16_m128x4_v1": (["nvfp4"], "block_scale:BlockScaleLayout"),
        "expert_block_scale_k16_m128x4_v1": (["nvfp4"], "block_scale:ExpertBlockScaleLayout"),
        "block_scale_k16_plain_v1": (["nvfp4"], "block_scale:PlainBlockScaleLayout"),
    }
    return [
        LayoutSpec(name, tuple(formats), f"{_LAYOUTS}.{layout}")
        for name, (formats, layout) in layouts.items()
    ]


@api.hookimpl
def ninfer_kv_codecs() -> list[KVCodecSpec]:
    return [KVCodecSpec(name, f"ninfer_core.state.codecs:{c}") for name, c in _CODECS.items()]


@api.hookimpl
def ninfer_op_contracts() -> list[OpContract]:
    return _CONTRACTS


@api.hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    return [contract.reference_kernel() for contract in _CONTRACTS if not contract.fused]


@api.hookimpl
def ninfer_commands() -> list[CommandSpec]:
    summary = "List every plugin with its state and reason."
    return [CommandSpec("plugins", summary, "ninfer_core.cli.plugins:run")]
