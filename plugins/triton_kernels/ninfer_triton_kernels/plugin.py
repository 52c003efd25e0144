"""What this distribution registers. Imports neither torch nor triton."""

from attrs import evolve

from ninfer_core.api import KernelSpec, LayoutSpec, hookimpl

NINFER_API = (1, 0)

CAPABILITIES = (90, 121)
"""Cards that their code is compiled for in tests: Hopper, and the consumer cards of Blackwell."""

_KERNELS = {
    "embedding": "tables",
    "linear": "matrices",
    "linear_group": "groups",
    "swiglu": "matrices",
    "moe_route": "routes",
    "moe_router": "routes",
    "moe_mlp": "experts",
    "shared_moe_mlp": "experts",
    "rmsnorm": "rows",
    "gated_rmsnorm": "rows",
    "sigmoid_gate": "rows",
    "grouped_rmsnorm": "streams",
    "scaled_silu": "streams",
    "stream_read": "streams",
    "stream_add": "streams",
    "signed_sqrt_gate": "streams",
    "ngram_rows": "ngrams",
    "causal_conv1d": "slots",
    "gated_delta_rule": "slots",
    "channel_delta_rule": "channel",
    "rope_kv_append": "cache",
    "paged_attention": "cache",
    "key_append": "sparse",
    "head_projection": "sparse",
    "mean_index_append": "sparse",
    "softmax_index_append": "sparse",
    "index_select": "sparse",
    "selected_attention": "sparse",
    "sinkhorn_read": "sinkhorn",
    "sinkhorn_write": "sinkhorn",
    "stream_mean": "sinkhorn",
}


FRAGMENTED = (
    "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16",
    "fp8_e4m3fn_g128_fp32", "nvfp4",
)
"""Formats whose products read fragments."""


_PLAIN = {
    "causal_conv1d", "embedding", "grouped_rmsnorm", "head_projection", "rmsnorm", "scaled_silu",
    "sigmoid_gate", "signed_sqrt_gate", "stream_add", "stream_read",
}
"""Ops whose kernels ask for nothing but a dtype of activations."""


_TUNED = {"linear", "swiglu"}
"""Ops whose kernels have other sizes of their launches, for ``ninfer bench tune``."""


@hookimpl
def ninfer_weight_layouts() -> list[LayoutSpec]:
    layout = "ninfer_triton_kernels.layouts:FragmentsLayout"
    return [LayoutSpec("fragments_m16_v1", FRAGMENTED, layout)]


@hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    blocks = evolve(
        _spec("gated_delta_rule", "slots"),
        name="triton.gated_delta_rule_blocks",
        factory="ninfer_triton_kernels.bindings.slots:bind_gated_delta_rule_blocks",
        accepts="ninfer_triton_kernels.accepts:accept_gated_delta_rule_blocks",
        priority=10,
        batch_invariant=False,
        source="Yang et al., Gated Delta Networks, 2024, section 3.3",
    )
    scaled = [_block_scaled(op) for op in ("linear", "swiglu")]
    sampling = evolve(
        _spec("sampling", "sampling"), tolerance="fp32", facts=None,
        source="Leviathan, Kalman and Matias, 2023, for drafts",
    )
    others = blocks, *scaled, sampling
    return [*(_spec(op, module) for op, module in _KERNELS.items()), *others]


def _block_scaled(op: str) -> KernelSpec:
    """For prompts in FP4, chosen by name: activations lose some of their bits. The code of other
    Blackwell cards needs Triton 3.8."""
    return evolve(
        _spec(op, "block_scaled"),
        name=f"triton.{op}_block_scaled",
        factory=f"ninfer_triton_kernels.bindings.block_scaled:bind_{op}_block_scaled",
        accepts=f"ninfer_triton_kernels.accepts:accept_{op}_block_scaled",
        formats=("nvfp4",),
        capability=(120, 120),
        priority=-10,
        batch_invariant=False,
        tolerance="fp4",
        variants=None,
    )


def _spec(op: str, module: str) -> KernelSpec:
    return KernelSpec(
        op=op,
        name=f"triton.{op}",
        factory=f"ninfer_triton_kernels.bindings.{module}:bind_{op}",
        accepts=f"ninfer_triton_kernels.accepts:accept_{'dtype' if op in _PLAIN else op}",
        devices=("cuda",),
        capability=CAPABILITIES,
        graph_safe=True,
        batch_invariant=True,
        tolerance="exact" if op == "embedding" else "bf16",
        facts="ninfer_triton_kernels.facts:describe",
        variants="ninfer_triton_kernels.variants:variants" if op in _TUNED else None,
    )
