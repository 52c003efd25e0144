"""GPT-2, with the two ops that the core does not have. A pack of the tests only."""

from ninfer_core.api import KernelSpec, ModelPackSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_model_packs() -> list[ModelPackSpec]:
    pack, claim = "ninfer_pack_gpt2.pack:Gpt2Pack", "ninfer_pack_gpt2.config:claim"
    return [ModelPackSpec(name="gpt2", pack=pack, claim=claim)]


@hookimpl
def ninfer_kernels() -> list[KernelSpec]:
    return [
        KernelSpec(op=f"gpt2.{op}", name=f"gpt2.{op}", factory=f"ninfer_pack_gpt2.ops:bind_{op}",
                   batch_invariant=True, priority=-100)
        for op in ("layernorm", "gelu")
    ]
