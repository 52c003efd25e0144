"""What this distribution registers. Imports neither torch nor numba."""

from ninfer_core.api import HardwareProfileSpec, KernelSpec, hookimpl

NINFER_API = (1, 0)

_KERNELS = {
    "embedding": "matrix",
    "linear": "matrix",
    "swiglu": "matrix",
    "moe_route": "experts",
    "moe_mlp": "experts",
    "rmsnorm": "rows",
    "gated_rmsnorm": "rows",
    "sigmoid_gate": "rows",
    "causal_conv1d": "slots",
    "gated_delta_rule": "slots",
    "rope_kv_append": "cache",
    "paged_attention": "cache",
}
_TOLERANCES = {"embedding": "exact"}


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
    return [
        KernelSpec(
            op=op,
            name=f"cpu.{op}",
            factory=f"ninfer_profile_cpu.bindings.{module}:bind_{op}",
            accepts=f"ninfer_profile_cpu.accepts:accept_{op}",
            batch_invariant=True,
            tolerance=_TOLERANCES.get(op, "fp32"),
        )
        for op, module in _KERNELS.items()
    ]
