"""Which requests the kernels take, and why not the others. Imports neither torch nor triton."""

from __future__ import annotations

from math import prod

from attrs import evolve

from ninfer_core.api import KernelRequest, WeightInfo

MINIFLOATS = ("fp8_e4m3fn_row_bf16", "fp8_e4m3fn_g128_fp32", "nvfp4")
DENSE = ("bf16", "fp32")
LAYOUT = "fragments_m16_v1"
KV_CODECS = ("bf16", "int8", "fp8")
ACTIVATIONS = ("silu", "sigmoid")
STREAMS = (1, 2, 4, 8)
MAX_HEAD_DIM, MAX_LATENT_DIM = 256, 512
"""Of heads that all of a group, and of those that 16 of it are attended with at once."""
MAX_KEY_DIM = 256
"""Rows of a state that one warp holds, for sixteen of its columns."""
MAX_BLOCK_KEY_DIM = 128
"""Of which four warps hold 32 columns, beside what products need."""
MOST_ROUTED = 8192
"""Columns of a router: of two rows of it, what four warps hold."""
MOST_IDS = 1 << 20
"""Tokens of a vocabulary."""


def accept_dtype(request: KernelRequest) -> str | None:
    if request.dtype != "bfloat16":
        return f"computes in bfloat16, not in {request.dtype}"
    return None


def accept_sampling(request: KernelRequest) -> str | None:
    if request.sizes["vocab_size"] > MOST_IDS:
        return f"draws from {MOST_IDS} tokens at most, not from {request.sizes['vocab_size']}"
    return None


def accept_linear(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_weights(request)


def accept_linear_group(request: KernelRequest) -> str | None:
    return accept_linear(request)


def accept_swiglu(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_weights(request) or _refuse_halves(request)


def accept_linear_block_scaled(request: KernelRequest) -> str | None:
    return accept_linear(request) or _refuse_unlaid(request)


def accept_swiglu_block_scaled(request: KernelRequest) -> str | None:
    return accept_swiglu(request) or _refuse_unlaid(request)


def accept_gated_rmsnorm(request: KernelRequest) -> str | None:
    if request.sizes["activation"] not in ACTIVATIONS:
        return f"has no activation {request.sizes['activation']}"
    return accept_dtype(request)


def accept_ngram_rows(request: KernelRequest) -> str | None:
    """Integers alone."""
    return None


def accept_rope_kv_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def accept_paged_attention(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request)


def accept_key_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request, MAX_LATENT_DIM)


def accept_mean_index_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_index(request)


def accept_softmax_index_append(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_index(request)


def accept_index_select(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_index(request)


def accept_selected_attention(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_cache(request, MAX_LATENT_DIM)


def accept_gated_delta_rule(request: KernelRequest) -> str | None:
    if request.sizes["key_dim"] > MAX_KEY_DIM:
        return f"has keys of at most {MAX_KEY_DIM}, not {request.sizes['key_dim']}"
    return accept_dtype(request)


def accept_channel_delta_rule(request: KernelRequest) -> str | None:
    return accept_gated_delta_rule(request)


def accept_gated_delta_rule_blocks(request: KernelRequest) -> str | None:
    if request.sizes["key_dim"] > MAX_BLOCK_KEY_DIM:
        return f"has keys of at most {MAX_BLOCK_KEY_DIM}, not {request.sizes['key_dim']}"
    return accept_dtype(request)


def accept_moe_route(request: KernelRequest) -> str | None:
    scoring, scale = request.sizes.get("scoring", "softmax"), request.sizes.get("scale", 1.0)
    if scoring not in ("softmax", "sigmoid"):
        return f"has no scores by {scoring}"
    if scoring == "softmax" and scale != 1.0:
        return f"does not scale shares of a softmax by {scale}"
    return accept_dtype(request)


def accept_moe_router(request: KernelRequest) -> str | None:
    [weight], experts = request.weights, request.sizes["num_experts"]
    if request.sizes["scoring"] != "softmax":
        return f"has no scores by {request.sizes['scoring']}"
    if weight.format.name != "bf16":
        return f"reads routers of bf16, not of {weight.format.name}"
    if len(weight.shape) != 2 or weight.shape[0] - experts not in (0, 1):
        return f"this is no router of {experts} experts: {list(weight.shape)}"
    if weight.shape[1] > MOST_ROUTED:
        return f"holds rows of {MOST_ROUTED} at most, not of {weight.shape[1]}"
    return accept_dtype(request)


def accept_sinkhorn_read(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_streams(request)


def accept_sinkhorn_write(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_streams(request)


def accept_stream_mean(request: KernelRequest) -> str | None:
    return accept_dtype(request) or _refuse_streams(request)


def accept_moe_mlp(request: KernelRequest) -> str | None:
    banks = map(_refuse_bank, request.weights)
    return accept_dtype(request) or next(filter(None, banks), None) or _refuse_experts(request)


def accept_shared_moe_mlp(request: KernelRequest) -> str | None:
    common = request.weights[2:]
    refused = accept_moe_mlp(evolve(request, weights=request.weights[:2]))
    return (refused or next(filter(None, map(_refuse_bank, common)), None)
            or _refuse_halves(evolve(request, weights=common[:1])))


def _refuse_streams(request: KernelRequest) -> str | None:
    if (count := request.sizes["num_streams"]) not in STREAMS:
        return f"holds {STREAMS} streams at once, not {count}"
    return None


def _refuse_cache(request: KernelRequest, widest: int = MAX_HEAD_DIM) -> str | None:
    if request.kv_codec not in KV_CODECS:
        return f"has no {request.kv_codec} cache"
    if request.sizes["head_dim"] > widest:
        return f"has heads of at most {widest}, not {request.sizes['head_dim']}"
    return None


def _refuse_index(request: KernelRequest) -> str | None:
    """Index keys may also lie there uncoded."""
    is_plain = request.kv_codec == "float32"
    return _refuse_cache(evolve(request, kv_codec="bf16") if is_plain else request)


def _refuse_weights(request: KernelRequest) -> str | None:
    return next(filter(None, map(_refuse_weight, request.weights)), None)


def _refuse_weight(weight: WeightInfo) -> str | None:
    structure = weight.format.structure
    if len(weight.shape) != 2:
        return f"takes matrices, not {list(weight.shape)}"
    if structure is None:
        known = weight.format.name in (*DENSE, *MINIFLOATS)
        return None if known else f"has no decoder for {weight.format.name}"
    narrow = structure.bits in (4, 5, 6) and structure.group in (32, 64)
    bytes_ = (structure.bits, structure.group) == (8, 32)
    if not (narrow or (bytes_ and structure.signed and not structure.minimum)):
        return (
            "decodes 4 to 6 bits in groups of 32 or 64, and signed 8 bits without minimum in "
            f"groups of 32, not {structure}"
        )
    if structure.scale_dtype != "float16":
        return f"reads scales of float16, not {structure.scale_dtype}"
    return None


def _refuse_bank(weight: WeightInfo) -> str | None:
    """Banks of matrices are read as the rows of one."""
    if weight.format.name == "fp32":
        return "has no banks of fp32"
    if weight.format.structure is not None and weight.format.structure.minimum:
        return "has no banks with minimums"
    if len(weight.shape) == 3:
        weight = evolve(weight, shape=(weight.shape[0] * weight.shape[1], weight.shape[2]))
    return _refuse_weight(weight)


def _refuse_experts(request: KernelRequest) -> str | None:
    """Gates and up projections of an expert, and the rows of its down projection, must be whole
    tiles."""
    shapes = [weight.shape for weight in request.weights]
    (*wide, width), (*narrow, inner) = shapes
    experts = request.sizes["num_experts"]
    if (prod(wide), prod(narrow)) != (experts * 2 * inner, experts * width):
        return f"these are no banks of {experts} experts: {shapes}"
    if inner % 16 or width % 16:
        return f"splits tiles of 16 rows between experts, whose sizes are {inner} and {width}"
    return None


def _refuse_unlaid(request: KernelRequest) -> str | None:
    """Quantised products read the planes of a weight as they are stored."""
    [weight] = request.weights
    return None if weight.layout == LAYOUT else f"reads {LAYOUT}, not {weight.layout}"


def _refuse_halves(request: KernelRequest) -> str | None:
    [weight] = request.weights
    is_tiled = weight.format.structure is not None or weight.format.name == "nvfp4"
    if is_tiled and weight.shape[0] % 32:
        return f"splits tiles of 16 rows into halves, and there are {weight.shape[0]} rows"
    return None
