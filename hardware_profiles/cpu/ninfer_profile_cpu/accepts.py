"""Which requests the kernels take, and why not the others. Imports neither torch nor numba."""

from __future__ import annotations

from math import prod

from ninfer_core.api import KernelRequest, WeightInfo

DENSE = ("fp32", "bf16")
UNSTRUCTURED = (*DENSE, "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32", "nvfp4")
BITS = (4, 5, 6, 8)
GROUP_MULTIPLE = 32
ACTIVATIONS = ("silu", "sigmoid")
KV_CODECS = ("fp32", "bf16", "int8", "fp8")
PLAIN_FP32 = ("fp32", "float32")
"""Codecs that store what they are given: one, and what state without a codec has."""


def accept_dtype(request: KernelRequest) -> str | None:
    if request.dtype != "float32":
        return f"computes in float32, not in {request.dtype}"
    return None


def accept_embedding(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_weights(request)


def accept_linear(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_weights(request)


def accept_swiglu(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_weights(request)


def accept_moe_route(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_scoring(request)


def accept_moe_mlp(request: KernelRequest) -> str | None:
    banks = map(_refuse_bank, request.weights)
    return accept_dtype(request) or next(filter(None, banks), None) or _refuse_experts(request)


def accept_gated_rmsnorm(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_activation(request)


def accept_mean_index_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_code(request)


def accept_softmax_index_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_code(request)


def accept_rope_kv_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def accept_key_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def accept_paged_attention(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def accept_selected_attention(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def _refuse_activation(request: KernelRequest) -> str | None:
    if request.sizes["activation"] not in ACTIVATIONS:
        return f"has no activation {request.sizes['activation']}"
    return None


def _refuse_scoring(request: KernelRequest) -> str | None:
    scoring, scale = (
        request.sizes.get(name, usual) for name, usual in (("scoring", "softmax"), ("scale", 1.0))
    )
    if scoring not in ("softmax", "sigmoid"):
        return f"has no scores by {scoring}"
    return "scales no shares of a softmax" if scoring == "softmax" and scale != 1.0 else None


def _refuse_weights(request: KernelRequest) -> str | None:
    return next(filter(None, map(_refuse_weight, request.weights)), None)


def _refuse_bank(weight: WeightInfo) -> str | None:
    """Banks of matrices are read as the rows of one, where they are nothing but values."""
    if weight.format.name == "nvfp4":
        return "has no decoder for banks of nvfp4"
    if len(weight.shape) == 3 and weight.format.name in DENSE:
        return None
    return _refuse_weight(weight)


def _refuse_experts(request: KernelRequest) -> str | None:
    shapes = [weight.shape for weight in request.weights]
    (*wide, width), (*narrow, inner) = shapes
    experts = request.sizes["num_experts"]
    if (prod(wide), prod(narrow)) != (experts * 2 * inner, experts * width):
        return f"these are no banks of {experts} experts: {shapes}"
    return None


def _refuse_weight(weight: WeightInfo) -> str | None:
    structure = weight.format.structure
    if len(weight.shape) != 2:
        return f"takes matrices, not {list(weight.shape)}"
    if weight.format.name in UNSTRUCTURED:
        return None
    if structure is None:
        return f"has no decoder for {weight.format.name}"
    if structure.bits not in BITS or structure.group % GROUP_MULTIPLE:
        return f"decodes {BITS} bits in groups of multiples of {GROUP_MULTIPLE}, not {structure}"
    if structure.scale_dtype != "float16":
        return f"reads scales of float16, not {structure.scale_dtype}"
    return None


def _refuse_code(request: KernelRequest) -> str | None:
    if request.kv_codec not in PLAIN_FP32:
        return f"writes index keys in fp32, not in {request.kv_codec}"
    return None


def _refuse_cache(request: KernelRequest) -> str | None:
    from ninfer_profile_cpu.kernels.machine import LANES

    if request.kv_codec not in KV_CODECS:
        return f"has no {request.kv_codec} cache"
    if request.sizes["head_dim"] % LANES:
        return f"needs heads of multiples of {LANES}, not {request.sizes['head_dim']}"
    return None
