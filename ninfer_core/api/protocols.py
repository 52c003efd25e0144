"""Behaviour behind the specs: small protocols, documented by shape, unit and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from ninfer_core.api.frontend import Frontend
from ninfer_core.api.sources import CheckpointSource, ImportPlan, StorageChoice
from ninfer_core.api.specs import (
    KernelWork,
    MachineFigures,
    ModelDescription,
    ParameterSpec,
    StateSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

Progress = Callable[[str, int, int], None]
"""``(phase, done, total)``; total 0 = unknown."""


@frozen
class PlaneInfo:
    """One plane of a stored object: a row-major tensor at a byte offset.

    :ivar name: ``codes``, ``high``, ``scales``, ``minimums``, ``divisor`` ...
    :ivar dtype: torch name.
    :ivar shape: of the stored tensor (padding included); dimension 0 is the logical rows where
        the layout can be sliced by rows.
    :ivar offset: bytes from the start of the object.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class FormatCodec(Protocol):
    """Numbers of a format. ``parts`` are logical components without padding or packing:
    ``codes`` (int8 [N, K], or the direct values), ``scales``, ``minimums``, ``divisor``."""

    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """fp32 ``[N, K]`` to parts; raises `ArtifactError` for values it cannot represent.

        Rows that share no row of a stored plane, nor a number of the whole, do not depend on each
        other: a large matrix is quantised by ranges of them.
        """
        ...

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Parts to fp32 ``[N, K]``, exactly as the format defines it."""
        ...


class StorageLayout(Protocol):
    """Bytes of an object. ``unpack(pack(parts)) == parts`` bit for bit."""

    def planes(self, format_name: str, shape: tuple[int, ...]) -> tuple[PlaneInfo, ...]:
        """Geometry for a logical shape; raises `ArtifactError` if the layout cannot hold it."""
        ...

    def nbytes(self, format_name: str, shape: tuple[int, ...]) -> int:
        """Exact size of the object in bytes."""
        ...

    def pack(self, format_name: str, parts: Mapping[str, Tensor]) -> Tensor:
        """Parts to the uint8 ``[nbytes]`` image of the object."""
        ...

    def unpack(
        self, format_name: str, shape: tuple[int, ...], planes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Planes (views of the image, as :meth:`planes` describes) to parts."""
        ...


class KVCodec(Protocol):
    """Storage of one paged state plane."""

    def planes(self, shape: tuple[int, ...]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """For a per-token shape ``(heads, dim)``: the stored tensors per token as
        ``(name, torch dtype name, shape)``."""
        ...

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        """fp32 ``[T, heads, dim]`` to stored tensors ``[T, ...]`` by name."""
        ...

    def decode(self, stored: Mapping[str, Tensor]) -> Tensor:
        """Stored tensors to fp32 ``[T, heads, dim]``."""
        ...


class HardwareProfile(Protocol):
    """Facts and choices of a machine."""

    name: str
    device: str
    """``cpu`` or ``cuda``."""
    capability: int
    """Compute capability as major * 10 + minor; 0 on a CPU."""
    compute_dtype: str
    """torch name of the activation type."""
    default_kv_dtype: str
    layouts: Mapping[str, str]
    """Format -> layout in which its kernels read matrices that nothing else reads: they are laid
    out so when they are loaded, if the layout is registered and holds them."""

    def figures(self) -> MachineFigures:
        """Figures for ledgers and predictions; must work where the hardware is absent."""
        ...

    def prepare(self, num_threads: int | None) -> None:
        """Called once before weights load, on the machine itself: threads, device, limits.

        :param num_threads: CPU threads that were asked for; None leaves them to the profile.
        :raises UnsupportedError: if this machine is not what the profile is for.
        """
        ...

    def memory_budget(self) -> int:
        """Bytes that weights, state and workspace together may take on this machine now."""
        ...

    def scratch_bytes(self, work: KernelWork) -> int:
        """Bytes that its kernels keep beside weights, state and activations; must work where the
        hardware is absent."""
        ...


class BuildContext(Protocol):
    """What a pack builds its model from: weights by logical name, bound ops, state, buffers."""

    @property
    def compute_dtype(self) -> Any:
        """The ``torch.dtype`` of activations."""
        ...

    @property
    def device(self) -> Any: ...

    @property
    def max_tokens(self) -> int:
        """Most rows (tokens) of one step."""
        ...

    @property
    def max_logits(self) -> int:
        """Most rows of logits wanted of one step."""
        ...

    @property
    def max_context(self) -> int: ...

    def weight(self, *names: str) -> Any:
        """The :class:`~ninfer_core.artifact.weight.Weight` of one parameter, or of several stacked
        by rows in the order given (they then run as one product)."""
        ...

    def weight_runs(self, *names: str) -> Sequence[Any]:
        """Parameters in the order given, as few weights as possible: neighbours that stack are one;
        where format, layout or a scale of the whole differs, another begins."""
        ...

    def tensor(self, name: str, *, dtype: Any = None) -> Tensor:
        """A direct parameter as a dense tensor of a torch dtype; of the compute dtype if None."""
        ...

    def state(self, name: str, layer: int) -> Any:
        """The persistent tensors of a declared state for one layer: a
        :class:`~ninfer_core.state.views.PagedPlanes` or ``SlotPlanes``."""
        ...

    def bind(self, op: str, *, sizes: Mapping[str, Any] | None = None, **constants: Any) -> Any:
        """Choose the kernel of an op for these constants, once; returns its callable."""
        ...

    def buffer(self, name: str, width: int, *, dtype: Any = None) -> Callable[[int], Tensor]:
        """A persistent ``[max_tokens, width]`` buffer of a torch dtype (None: the compute dtype);
        call it with T for its first T rows. The same name gives the same memory, so layers share
        it."""
        ...


class Model(Protocol):
    """A built model. All its memory was allocated by the build."""

    def forward(self, batch: Any) -> Tensor:
        """Run one step.

        :param batch: a :class:`~ninfer_core.state.step.StepBatch`.
        :return: fp32 logits ``[batch.num_logits, vocab]``, rows in the order of
            ``batch.logit_rows``; valid until the next call.
        """
        ...


class NextTokenPredictor(Protocol):
    """A drafter that is part of a model (multi-token prediction): it reads a token beside the
    hidden state of the one before, and keeps paged state of its own under the sequence's pages."""

    @property
    def token_ids(self) -> Tensor | None:
        """int64 ``[N]``, the tokens its logits are of; None: the whole vocabulary in order."""
        ...

    def forward(self, batch: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Run one step.

        :param batch: a :class:`~ninfer_core.state.step.StepBatch`: positions are those of
            ``hidden``; ``token_ids`` are the tokens that *follow* at each of them.
        :param hidden: ``[T, W]``, hidden states of the target model, or what an earlier call
            returned, as it lies in memory.
        :return: fp32 logits ``[num_logits, N]`` of the tokens after those, and this module's own
            hidden states ``[num_logits, W]``, rows as ``batch.logit_rows``; valid until the next
            call.
        """
        ...


class PredictingModel(Model, Protocol):
    """A model that was built with its next-token predictor."""

    @property
    def predictor(self) -> NextTokenPredictor: ...

    def hidden(self, num_tokens: int) -> Tensor:
        """Hidden states ``[num_tokens, W]`` of the last step as the predictor reads them (mostly
        behind the final norm), valid until the next."""
        ...


class ModelPack(Protocol):
    """Topology and names of one architecture."""

    def configure(self, model: ModelDescription) -> Any:
        """The pack's own frozen config; raises `ArtifactError` naming a missing or odd key."""
        ...

    def parameters(self, config: Any) -> tuple[ParameterSpec, ...]:
        """Every logical parameter of the model."""
        ...

    def states(self, config: Any) -> tuple[StateSpec, ...]:
        """What a sequence of this model owns."""
        ...

    def operations(self, config: Any) -> Mapping[str, Any]:
        """Sizes for predictions: ``vocab_size``, ``max_context``, ``attention_flops_per_token``
        (per token of context), ``attention_width`` (query heads times their size, of layers that
        attend to all of it), ``launches_per_step``; of a mixture of experts also ``num_experts``
        and ``experts_per_token`` (its routed experts are the parameters with ``/experts/{e}/`` in
        their names); with a predictor, whose paged states are named ``{component}_...``, also
        ``launches_per_draft``, of one step of it. Where attention selects: of the paged states
        named in ``selected_states`` it reads at most ``selected_tokens``, each with
        ``selected_flops_per_token``; ``index_block`` tokens share a key that it selects by.
        ``gathered_rows``: names of tables to rows that a token takes
        of them, if more than one. For machines that share a step: ``replicated``, patterns of
        names of parameters and states that each holds whole, and ``exchanges_per_step`` sums of
        ``exchange_width`` numbers a token."""
        ...

    def build(self, config: Any, context: BuildContext) -> Model:
        """Bind every op and allocate every buffer."""
        ...

    def frontend(self, config: Any, resources: Mapping[str, bytes]) -> Frontend:
        """Build the text side from the artifact's resources."""
        ...

    def import_source(self, source: CheckpointSource) -> ImportPlan:
        """Translate a source checkpoint that this pack has claimed."""
        ...

    def tiny(self) -> ModelDescription:
        """A description of a tiny random model of this architecture, for conformance runs."""
        ...


class Converter(Protocol):
    """Turns a source into a published `.ninfer` set; never overwrites, publishes last."""

    def __call__(
        self, source: Path, destination: Path, *, pack: ModelPack, registry: Any,
        recipe: Sequence[StorageChoice] | None = None, progress: Progress | None = None,
    ) -> object:
        """Convert; the recipe is the pack's if None.

        :return: a report; its text is for the user.
        :raises NInferError: naming what is missing, left over or cannot be stored; nothing is
            left at the destination then.
        """
        ...
