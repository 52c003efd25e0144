"""What this distribution registers. Imports neither torch nor numba."""

from ninfer_core.api import HardwareProfileSpec, KernelSpec, hookimpl

NINFER_API = (1, 0)

_KERNELS = {
    "embedding": "matrix",
    "linear": "matrix",
    "head_projection": "matrix",
    "swiglu": "matrix",
    "moe_route": "experts",
    "moe_mlp": "experts",
    "rmsnorm": "rows",
    "gated_rmsnorm": "rows",
    "sigmoid_gate": "rows",
    "grouped_rmsnorm": "streams",
    "scaled_silu": "streams",
    "stream_read": "streams",
    "stream_add": "streams",
    "signed_sqrt_gate": "streams",
    "sinkhorn_read": "sinkhorn",
    "sinkhorn_write": "sinkhorn",
    "stream_mean": "sinkhorn",
    "causal_conv1d": "slots",
    "gated_delta_rule": "slots",
    "channel_delta_rule": "slots",
    "rope_kv_append": "cache",
    "key_append": "cache",
    "paged_attention": "cache",
    "mean_index_append": "index_keys",
    "softmax_index_append": "index_keys",
    "index_select": "sparse",
    "selected_attention": "sparse",
}
_TOLERANCES = {"embedding": "exact"}


_PLAIN = {
    "causal_conv1d", "channel_delta_rule", "gated_delta_rule", "grouped_rmsnorm",
    "head_projection", "index_select", "rmsnorm", "scaled_silu", "sigmoid_gate",
    "signed_sqrt_gate", "sinkhorn_read", "sinkhorn_write", "stream_add", "stream_mean",
    "stream_read",
}
"""Ops whose kernels ask for nothing but a dtype of activations."""


@hookimpl
def ninfer_hardware_profiles() -> list[HardwareProfileSpec]:
    return [
        HardwareProfileSpec(
            name="cpu",
            detect="ninfer_profile_cpu.profile:detect",
            profile="ninfer_profile_cpu.profile:CpuProfile",
        )
    ]


@hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    """What runs; and forms in torch that run where they are asked for."""
    compiled = [
        KernelSpec(
            op=op,
            name=f"cpu.{op}",
            factory=f"ninfer_profile_cpu.bindings.{module}:bind_{op}",
            accepts=f"ninfer_profile_cpu.accepts:accept_{'dtype' if op in _PLAIN else op}",
            batch_invariant=True,
            tolerance=_TOLERANCES.get(op, "fp32"),
        )
        for op, module in _KERNELS.items()
    ]
    module = "ninfer_profile_cpu.chunked_delta_rule"
    chunked = [
        KernelSpec(
            "gated_delta_rule", "torch.gated_delta_rule", f"{module}:bind", priority=-110,
            source="Yang, Kautz and Hatamizadeh, 2024, section 3.3",
        ),
        KernelSpec(
            "channel_delta_rule", "torch.channel_delta_rule", f"{module}:bind_channel",
            accepts=f"{module}:accept_channel", priority=-110,
            source="Kimi Team, Kimi Linear, 2025, section 3",
        ),
    ]
    return [*compiled, *chunked]
