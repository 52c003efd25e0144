"""Which requests the kernels take, and why not the others. Imports neither torch nor numba."""

from __future__ import annotations

from ninfer_core.api import KernelRequest, WeightInfo

DENSE = ("fp32", "bf16")
BITS = (4, 5, 6, 8)
GROUP_MULTIPLE = 32
KV_CODECS = ("fp32", "bf16", "int8", "fp8")


def accept_embedding(request: KernelRequest) -> str | None:
    return _refuse_dtype(request) or _refuse_weights(request)


def accept_linear(request: KernelRequest) -> str | None:
    return _refuse_dtype(request) or _refuse_weights(request)


def accept_swiglu(request: KernelRequest) -> str | None:
    return _refuse_dtype(request) or _refuse_weights(request)


def accept_rmsnorm(request: KernelRequest) -> str | None:
    return _refuse_dtype(request)


def accept_rope_kv_append(request: KernelRequest) -> str | None:
    return _refuse_dtype(request) or _refuse_cache(request)


def accept_paged_attention(request: KernelRequest) -> str | None:
    return _refuse_dtype(request) or _refuse_cache(request)


def _refuse_dtype(request: KernelRequest) -> str | None:
    if request.dtype != "float32":
        return f"computes in float32, not in {request.dtype}"
    return None


def _refuse_weights(request: KernelRequest) -> str | None:
    return next(filter(None, map(_refuse_weight, request.weights)), None)


def _refuse_weight(weight: WeightInfo) -> str | None:
    structure = weight.format.structure
    if weight.format.name in DENSE:
        return None
    if structure is None:
        return f"has no decoder for {weight.format.name}"
    if structure.bits not in BITS or structure.group % GROUP_MULTIPLE:
        return f"decodes {BITS} bits in groups of multiples of {GROUP_MULTIPLE}, not {structure}"
    if structure.scale_dtype != "float16":
        return f"reads scales of float16, not {structure.scale_dtype}"
    return None


def _refuse_cache(request: KernelRequest) -> str | None:
    from ninfer_profile_cpu.kernels.machine import LANES

    if request.kv_codec not in KV_CODECS:
        return f"has no {request.kv_codec} cache"
    if request.sizes["head_dim"] % LANES:
        return f"needs heads of multiples of {LANES}, not {request.sizes['head_dim']}"
    return None
