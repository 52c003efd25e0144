"""Behaviour behind the specs: small protocols, documented by shape, unit and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from ninfer_core.api.specs import (
    MachineFigures,
    ModelDescription,
    ParameterSpec,
    SamplingParams,
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
        """fp32 ``[N, K]`` to parts; raises `ArtifactError` for values it cannot represent."""
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

    def tensor(self, name: str) -> Tensor:
        """A direct parameter as a dense tensor of the compute dtype."""
        ...

    def state(self, name: str, layer: int) -> Any:
        """The persistent tensors of a declared state for one layer: a
        :class:`~ninfer_core.state.views.PagedPlanes` or ``SlotPlanes``."""
        ...

    def bind(self, op: str, *, sizes: Mapping[str, Any] | None = None, **constants: Any) -> Any:
        """Choose the kernel of an op for these constants, once; returns its callable."""
        ...

    def buffer(self, name: str, width: int) -> Callable[[int], Tensor]:
        """A persistent ``[max_tokens, width]`` activation buffer; call it with T for its first T
        rows. The same name gives the same memory, so layers share it."""
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


class Tokenizer(Protocol):
    """Text to ids and back; ids to bytes, because a character may span tokens."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """``special``: whether control-token text becomes control tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; control tokens give their text."""
        ...


@frozen
class PreparedPrompt:
    """A request's input after the frontend.

    :ivar token_ids: the whole prompt.
    :ivar text: the rendered prompt, for logs and diagnosis.
    :ivar reasoning_open: whether the prompt ends inside an open reasoning block.
    """

    token_ids: tuple[int, ...]
    text: str
    reasoning_open: bool = False


@frozen
class OutputPart:
    """A piece of an answer: ``channel`` is ``content`` or ``reasoning``."""

    channel: str
    text: str


class OutputParser(Protocol):
    """Splits the answer's text into channels; the result does not depend on how it is cut."""

    def feed(self, text: str) -> Sequence[OutputPart]: ...

    def finish(self) -> Sequence[OutputPart]: ...


class Frontend(Protocol):
    """Everything of a model that is about text."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def sampling_defaults(self) -> SamplingParams: ...

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> PreparedPrompt:
        """Render a conversation; raises `RequestError` for malformed messages."""
        ...

    def parser(self, prompt: PreparedPrompt) -> OutputParser: ...


class SourceTensor(Protocol):
    """A tensor of a source checkpoint, read when asked."""

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


class CheckpointSource(Protocol):
    """A source checkpoint (safetensors directory, GGUF file)."""

    @property
    def description(self) -> ModelDescription: ...

    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...

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
        of its own. Parameters with ``tied_to`` are not in a plan; they share the other's object.
    """

    spec: ParameterSpec
    sources: tuple[str, ...]
    values: Callable[[], Tensor]
    parts: Callable[[], Mapping[str, Tensor]] | None = None
    format: str = ""
    parent: str = ""


@frozen
class StorageChoice:
    """The stored type of the projections and tables whose names match ``pattern`` (fnmatch); direct
    parameters are stored as the source holds them.

    The first match of a recipe wins. ``format`` "" keeps what the source holds, bit for bit, or
    stores bf16 where the parameters of one object hold no common format; ``layout`` "" takes the
    format's first layout.
    """

    pattern: str
    format: str = ""
    layout: str = ""


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
        (per token of context), ``launches_per_step``."""
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


class Speculator(Protocol):
    """Drafts tokens that the target model verifies.

    The engine calls, per decode round: `propose`, then, after the verified tokens were committed,
    `observe`. A raising speculator is switched off for the engine.
    """

    @property
    def max_drafts(self) -> int: ...

    def propose(self, request_id: int, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` draft tokens to follow ``tokens`` (prompt and output so far)."""
        ...

    def observe(self, request_id: int, drafted: Sequence[int], accepted: int) -> None:
        """Outcome of the last proposal: the first ``accepted`` drafts were committed."""
        ...

    def release(self, request_id: int) -> None:
        """The request is gone; drop what is held for it."""
        ...

