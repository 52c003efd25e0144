"""Source checkpoints, and what a pack makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import field, frozen
from attrs.validators import in_

from ninfer_core.api.specs import ModelDescription, ParameterSpec

if TYPE_CHECKING:
    from torch import Tensor


class SourceTensor(Protocol):
    """A tensor of a source checkpoint, read when asked. Quantised ones are one tensor with their
    scales, of the logical shape."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """``F32``, ``BF16``, ``Q4_1`` ...: the source's own name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str:
        """The format of the core that holds the tensor bit for bit; "" if none does."""
        ...

    def raw(self) -> Tensor:
        """Stored values, or bytes of quantised blocks as uint8 ``[..., bytes of a row]``."""
        ...

    def parts(self) -> Mapping[str, Tensor]:
        """The parts of `format`."""
        ...

    def dense(self) -> Tensor:
        """fp32 values in the logical shape."""
        ...

    def scalars(self) -> Mapping[str, float]:
        """Numbers of a whole matrix, exact in fp32, where it has them: ``divisor`` (also among its
        parts), ``activation_input_divisor`` (of the input of its product)."""
        ...

    def __getitem__(self, index: int | slice) -> SourceTensor:
        """What lies at an index of the first dimension, or a range of it: an expert of a bank, some
        rows. Nothing but that is read; its name is that of the whole."""
        ...


class CheckpointSource(Protocol):
    """A source checkpoint (safetensors directory, GGUF file)."""

    @property
    def description(self) -> ModelDescription: ...

    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...

    @property
    def ignored(self) -> Mapping[str, str]:
        """Tensors that are not offered, with the reason."""
        ...

    @property
    def resources(self) -> Mapping[str, bytes]:
        """Files or metadata that belong to the frontend, by role (``tokenizer.json`` ...)."""
        ...


@frozen
class ImportedParameter:
    """How one logical parameter comes out of a source.

    :ivar spec: the parameter.
    :ivar sources: names of the source tensors it consumes.
    :ivar values: ``() -> fp32 [N, K]`` (or any shape for direct parameters); dense values.
    :ivar parts: ``() -> parts`` of ``format``, bit for bit what the source holds.
    :ivar format: the format that holds the source exactly; "" if none does (``parts`` is not used).
    :ivar parent: id of the stored object whose rows this parameter is: parameters of one parent are
        stacked in the plan's order, so that one product reads them without a copy. "" = an object
        of its own. Neighbours that are stored in different kinds become objects of their own.
        Parameters with ``tied_to`` are not in a plan; they share the other's object.
    :ivar scalars: `SourceTensor.scalars` of what the parameter is made of.
    :ivar bank: whether the parent is a bank of experts, which must stay one object: every parameter
        is a matrix of it, and all have one shape and one format.
    :ivar rows: ``(begin, end) ->`` the parameter of these rows alone; nothing but them is read, so
        that what is large is converted range by range. None if it comes only as a whole.
    """

    spec: ParameterSpec
    sources: tuple[str, ...]
    values: Callable[[], Tensor]
    parts: Callable[[], Mapping[str, Tensor]] | None = None
    format: str = ""
    parent: str = ""
    scalars: Callable[[], Mapping[str, float]] | None = None
    bank: bool = False
    rows: Callable[[int, int], ImportedParameter] | None = None


@frozen
class StorageChoice:
    """The stored type of the projections and tables whose names match ``pattern`` (fnmatch); direct
    parameters are stored as the source holds them.

    The first match of a recipe wins. ``format`` "" keeps what the source holds, bit for bit, or
    stores bf16 where no format holds it; ``layout`` "" takes the format's first layout that holds
    the shape. ``activations`` is what products may round their other operand to: to nothing below
    16 bits, to 8, or to 4.
    """

    pattern: str
    format: str = ""
    layout: str = ""
    activations: Literal["A16Only", "AllowA8", "AllowA4"] = field(
        default="A16Only", validator=in_(("A16Only", "AllowA8", "AllowA4"))
    )


@frozen
class ImportPlan:
    """A pack's translation of a source into logical parameters.

    :ivar components: components of the catalogue by id (``{"config": {...}}`` and perhaps
        ``target``, ``proposal``); ``text`` is required.
    :ivar resources: frontend resources by role.
    :ivar ignored: source tensors that are deliberately not used, with the reason.
    :ivar recipe: default storage choices.
    """

    components: Mapping[str, Mapping[str, Any]]
    parameters: tuple[ImportedParameter, ...]
    resources: Mapping[str, bytes]
    ignored: Mapping[str, str]
    recipe: tuple[StorageChoice, ...]
