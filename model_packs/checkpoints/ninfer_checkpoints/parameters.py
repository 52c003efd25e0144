"""Parameters of a model: names and shapes here, and the tensors of checkpoints that they are."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ninfer_checkpoints.selection import Select, whole
from ninfer_core.api import ParameterSpec


@frozen
class Origin:
    """A tensor of a checkpoint that a parameter is, or is cut out of.

    :ivar at: indexes and ranges of its first dimension, one after the other: the matrix of a bank,
        then rows of that.
    :ivar select: what of that is meant, and how it lies.
    """

    tensor: str
    at: tuple[int | slice, ...] = ()
    select: Select = whole


@frozen
class Parameter:
    """One parameter.

    :ivar origins: where checkpoints may have it; they have one of them, or with ``joined`` all.
    :ivar parent: object that stores it together with others that one product reads.
    :ivar bank: whether that is a bank of experts.
    :ivar fp32: whether it is stored in fp32 whatever the checkpoint has.
    :ivar joined: the dimension along which it is its origins, one after the other.
    :ivar transposed: whether its rows lie across those of the checkpoint, so that scales of these
        are none of its own: it has values alone then.
    """

    spec: ParameterSpec
    origins: tuple[Origin, ...]
    parent: str = ""
    bank: bool = False
    fp32: bool = False
    joined: int | None = None
    transposed: bool = False


@frozen
class Block:
    """Where the parameters of a layer are: name here, and prefix in checkpoints."""

    name: str
    prefix: str

    def direct(
        self, name: str, shape: tuple[int, ...], tensor: str, select: Select = whole, *,
        fp32: bool = False,
    ) -> Parameter:
        """A norm or another vector."""
        spec = ParameterSpec(f"{self.name}/{name}", shape, "direct")
        return Parameter(spec, (Origin(self.prefix + tensor, select=select),), fp32=fp32)

    def projection(
        self, name: str, shape: tuple[int, int], *origins: Origin, input: str, parent: str = "",
        bank: bool = False,
    ) -> Parameter:
        """A matrix and the activation that it is multiplied with; parent and tensors are named as
        in the block."""
        spec = ParameterSpec(f"{self.name}/{name}", shape, inputs=(f"{self.name}/{input}",))
        found = tuple(Origin(self.prefix + each.tensor, each.at, each.select) for each in origins)
        return Parameter(spec, found, f"{self.name}/{parent}" if parent else "", bank=bank)

    def stack(
        self, parent: str, input: str, shape: tuple[int, int], **tensors: str
    ) -> Iterator[Parameter]:
        """Matrices of one shape that are each a whole tensor, in one object."""
        for name, tensor in tensors.items():
            path = f"{parent.rpartition('/')[0]}/{name}"
            yield self.projection(path, shape, Origin(tensor), input=input, parent=parent)


def gated_mlp(
    block: Block, name: str, prefix: str, hidden: int, inner: int
) -> Iterator[Parameter]:
    """A SwiGLU MLP: gate and up in one object, and down."""
    yield from block.stack(
        f"{name}/gate_up", "ffn_input", (inner, hidden), gate=f"{prefix}gate_proj.weight",
        up=f"{prefix}up_proj.weight",
    )
    yield block.projection(
        f"{name}/down", (hidden, inner), Origin(f"{prefix}down_proj.weight"),
        input=f"{name}/product",
    )


def sparse_moe(
    block: Block, *, hidden: int, num_experts: int, inner: int, shared_inner: int
) -> Iterator[Parameter]:
    """Routed experts, one that all tokens share, and the scores of both (as in Qwen2-MoE)."""
    for name, outputs, tensor in (
        ("router", num_experts, "gate"), ("shared_score", 1, "shared_expert_gate"),
    ):
        yield block.projection(
            f"moe/{name}", (outputs, hidden), Origin(f"mlp.{tensor}.weight"),
            input="ffn_input", parent="moe/scores",
        )
    yield from expert_banks(block, num_experts, hidden, inner)
    yield from gated_mlp(block, "moe/shared", "mlp.shared_expert.", hidden, shared_inner)


def expert_banks(
    block: Block, num_experts: int, hidden: int, inner: int
) -> Iterator[Parameter]:
    """Banks of all experts of ``moe``: gate and up, each gate above its up, and down."""
    for expert in range(num_experts):
        for name, begin in (("gate", 0), ("up", inner)):
            bank = Origin("mlp.experts.gate_up_proj", (expert, slice(begin, begin + inner)))
            yield _expert(block, expert, name, (inner, hidden), bank, "ffn_input", "gate_up")
    for expert in range(num_experts):
        bank, product = Origin("mlp.experts.down_proj", (expert,)), f"experts/{expert}/product"
        yield _expert(block, expert, "down", (hidden, inner), bank, f"moe/{product}", "down")


def _expert(
    block: Block, expert: int, name: str, shape: tuple[int, int], bank: Origin, input: str,
    parent: str,
) -> Parameter:
    """Checkpoints have the bank, or each matrix by itself under either order of names."""
    alone = [Origin(f"mlp.experts.{each}.weight")
             for each in (f"{name}_proj.{expert}", f"{expert}.{name}_proj")]
    return block.projection(
        f"moe/experts/{expert}/{name}", shape, bank, *alone, input=input,
        parent=f"moe/experts/{parent}", bank=True,
    )
