"""What this distribution registers. Imports neither torch nor triton."""

from attrs import evolve

from ninfer_core.api import KernelSpec, hookimpl

NINFER_API = (1, 0)

CAPABILITIES = (90, 121)
"""Cards that their code is compiled for in tests: Hopper, and the consumer cards of Blackwell."""

_KERNELS = {
    "embedding": "tables",
    "linear": "matrices",
    "swiglu": "matrices",
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


@hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    blocks = evolve(
        _spec("gated_delta_rule", "slots"),
        name="triton.gated_delta_rule_blocks",
        factory="ninfer_triton_kernels.bindings.slots:bind_gated_delta_rule_blocks",
        accepts="ninfer_triton_kernels.accepts:accept_gated_delta_rule_blocks",
        priority=-10,
        batch_invariant=False,
        source="Yang et al., Gated Delta Networks, 2024, section 3.3",
    )
    return [*(_spec(op, module) for op, module in _KERNELS.items()), blocks]


def _spec(op: str, module: str) -> KernelSpec:
    return KernelSpec(
        op=op,
        name=f"triton.{op}",
        factory=f"ninfer_triton_kernels.bindings.{module}:bind_{op}",
        accepts=f"ninfer_triton_kernels.accepts:accept_{op}",
        devices=("cuda",),
        capability=CAPABILITIES,
        graph_safe=True,
        batch_invariant=True,
        tolerance="exact" if op == "embedding" else "bf16",
    )
