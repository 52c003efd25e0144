"""Behaviour behind the specs: small protocols, documented by shape, unit and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import field, frozen
from attrs.validators import in_

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
        :param hidden: ``[T, H]``, final-normed hidden states of the target model, or what an
            earlier call returned.
        :return: fp32 logits ``[num_logits, N]`` of the tokens after those, and this module's own
            normed hidden states ``[num_logits, H]``, rows as ``batch.logit_rows``; valid until the
            next call.
        """
        ...


class PredictingModel(Model, Protocol):
    """A model that was built with its next-token predictor."""

    @property
    def predictor(self) -> NextTokenPredictor: ...

    def hidden(self, num_tokens: int) -> Tensor:
        """Final-normed hidden states ``[num_tokens, H]`` of the last step, valid until the next."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back; ids to bytes, because a character may span tokens."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Id of each control token by its text."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """``special``: whether control-token text becomes control tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; control tokens give their text."""
        ...


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@frozen
class PromptOptions:
    """What a request asks of the chat template; None leaves it to the model's default.

    :ivar thinking: whether the answer begins with reasoning.
    :ivar effort: how much; a frontend maps it to what its template knows.
    :ivar preserve_thinking: whether reasoning of earlier turns stays in the prompt.
    """

    thinking: bool | None = None
    effort: ReasoningEffort | None = None
    preserve_thinking: bool | None = None


@frozen
class PreparedPrompt:
    """A request's input after the frontend.

    :ivar token_ids: the whole prompt.
    :ivar text: the rendered prompt, for logs and diagnosis.
    :ivar reasoning_open: whether the prompt ends inside an open reasoning block.
    :ivar tools: declarations of the tools that the answer may call, OpenAI's shape.
    :ivar num_stable: first tokens that other conversations with the same system prompt and tools
        begin with, too; 0 if that is not known.
    :ivar marks: numbers of tokens after which a client wants the prompt to be reusable; the last
        eight count.
    :ivar scope: what tells apart computations of equal tokens, such as digests of media; literals,
        as ``repr`` writes them for good.
    """

    token_ids: tuple[int, ...]
    text: str
    reasoning_open: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    num_stable: int = 0
    marks: tuple[int, ...] = ()
    scope: Any = None


@frozen
class OutputPart:
    """A piece of an answer: ``channel`` is ``content`` or ``reasoning``."""

    channel: str
    text: str


@frozen
class ToolCall:
    """A complete call of a declared tool.

    :ivar index: 0 for the first of an answer. :ivar arguments: a JSON object, as text.
    """

    index: int
    name: str
    arguments: str


AnswerPart = OutputPart | ToolCall


class OutputParser(Protocol):
    """Splits the answer's text into channels and calls; the result does not depend on how the text
    is cut. A call is given when it is complete; what never becomes one is content."""

    def feed(self, text: str) -> Sequence[AnswerPart]: ...

    def finish(self) -> Sequence[AnswerPart]: ...


@frozen
class ReasoningTokens:
    """How a model marks reasoning in tokens.

    :ivar opening, closing: ids of the marks.
    :ivar forced: what ends a block whose budget is spent; it contains ``closing``.
    :ivar spaces: tokens of white space alone, behind which a block may still be opened. Behind any
        other the answer has begun, and ``opening`` is text.
    :ivar newlines: those of newlines alone, which belong to a closed block and not to the answer.
    """

    opening: int
    closing: int
    forced: tuple[int, ...]
    spaces: frozenset[int] = frozenset()
    newlines: frozenset[int] = frozenset()


@frozen
class CallSyntax:
    """How a model writes a call: ``opening``, the name, ``named``, for each argument ``parameter``,
    its name, ``keyed``, its value and ``valued``, then ``closing``. A string is written as it is,
    any other value as JSON. Tags that are control tokens are written as such.

    :ivar separator: between one call and the next.
    :ivar begins: tags that text without a call must not have, because a call may begin with them;
        ``opening`` begins with the first.
    :ivar reserved: tags that a string must not have, because its value might end there.
    """

    opening: str
    named: str
    parameter: str
    keyed: str
    valued: str
    closing: str
    separator: str
    begins: tuple[str, ...]
    reserved: tuple[str, ...]


class Frontend(Protocol):
    """Everything of a model that is about text."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def reasoning_tokens(self) -> ReasoningTokens | None:
        """None if the model does not reason in blocks."""
        ...

    @property
    def call_syntax(self) -> CallSyntax | None:
        """None if the model writes no calls."""
        ...

    def sampling_defaults(self, prompt: PreparedPrompt) -> SamplingParams:
        """What the model's makers recommend for such a prompt."""
        ...

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (),
        options: PromptOptions = PromptOptions(),
    ) -> PreparedPrompt:
        """Render a conversation; raises `RequestError` for malformed messages, and for options that
        the model does not have.

        A ``cache_control`` member of a message, a content part or a tool is a client's marker: it
        changes no prompt, and becomes one of its ``marks``, behind what has it.
        """
        ...

    def parser(self, prompt: PreparedPrompt) -> OutputParser: ...


@frozen
class Grammar:
    """What an answer's content must be.

    :ivar kind: ``json`` (any JSON object), ``json_schema``, ``regex``, ``choice`` (one of several
        texts) or ``grammar`` (the constraint engine's own notation).
    :ivar source: the schema as JSON text, the expression, a JSON array of the texts, the grammar;
        "" for ``json``.
    """

    kind: Literal["json", "json_schema", "regex", "choice", "grammar"]
    source: str = ""


@frozen
class CallRules:
    """What an answer's tool calls must be.

    :ivar required: whether there must be one.
    :ivar names: tools that may be called; None for all that are declared, () for none of them.
    :ivar parallel: whether there may be more than one.
    :ivar strict: names of tools whose arguments must follow their schema to the letter.
    """

    required: bool = False
    names: tuple[str, ...] | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()


class TokenConstraint(Protocol):
    """Narrows the next token of one request.

    It is told of tokens once they are committed. Drafts are only asked about, and leave no trace;
    so an answer is the same with and without them. One that raises fails its own request.
    """

    def mask(self, pending: tuple[int, ...]) -> Tensor | None:
        """What may follow the committed tokens and ``pending`` ones, all of them allowed.

        :return: bool ``[V]`` in host memory, True for allowed tokens, which the caller only reads;
            None for all.
        """
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """These tokens were generated."""
        ...


NewConstraint = Callable[[frozenset[int]], TokenConstraint]
"""A constraint at its beginning, from the tokens that end the output; it allows these where the
output may end."""


class ConstraintCompiler(Protocol):
    """Makes constraints of what requests want."""

    def compile(
        self, grammar: Grammar | None, calls: CallRules, tools: Sequence[Mapping[str, Any]]
    ) -> NewConstraint:
        """A constraint on an answer behind its reasoning: ``grammar`` holds its content, or with
        none content is free; in its place, or behind free content, there may be calls as the rules
        say. Called from any thread, and for an equal request again soon.

        :param tools: that may be called, OpenAI's shape; none without a call syntax.
        :raises RequestError: naming what is malformed, cannot be expressed or takes too long.
        """
        ...


@frozen(eq=False)
class ConstraintContext:
    """What a constraint compiler is made from.

    :ivar vocab_size: ids that masks are of; the tokenizer may know more.
    """

    tokenizer: Tokenizer
    vocab_size: int
    call_syntax: CallSyntax | None


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
    """

    spec: ParameterSpec
    sources: tuple[str, ...]
    values: Callable[[], Tensor]
    parts: Callable[[], Mapping[str, Tensor]] | None = None
    format: str = ""
    parent: str = ""
    scalars: Callable[[], Mapping[str, float]] | None = None
    bank: bool = False


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
        (per token of context), ``launches_per_step``; of a mixture of experts also ``num_experts``
        and ``experts_per_token`` (its routed experts are the parameters with ``/experts/{e}/`` in
        their names); with a predictor, whose paged states are named ``{component}_...``, also
        ``launches_per_draft``, of one step of it."""
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


@frozen(eq=False)
class DraftRequest:
    """A decoding sequence at the start of a round.

    :ivar tokens: prompt and output so far. :ivar limit: most drafts, at least 1.
    :ivar row: ``(drafts so far) -> SampleRow`` of the token after them: what the target will be
        sampled with (parameters, penalties, mask).
    :ivar state: its :class:`~ninfer_core.state.store.SequenceState`.
    """

    request_id: int
    tokens: Sequence[int]
    limit: int
    row: Callable[[tuple[int, ...]], Any]
    state: Any


@frozen(eq=False)
class Draft:
    """Drafted tokens.

    :ivar proposals: fp64 ``[n, V]``, the distributions they were drawn from; None if they were not
        drawn at random (argmax, looked up).
    """

    token_ids: tuple[int, ...] = ()
    proposals: Tensor | None = None


@frozen(eq=False)
class Advance:
    """What one sequence committed in the last step of the target model: its inputs
    ``tokens[begin:end]``.

    :ivar tokens: prompt and output so far; ``tokens[end]`` is known: the next token of the prompt,
        or the one just drawn.
    :ivar first_row: row of ``tokens[begin]`` among the step's tokens (and hidden states).
    :ivar decoding: whether the prompt has been read, so that drafts will be asked for.
    :ivar drafted, accepted: of the last proposal, if the step verified one; drafts behind the end
        of an answer do not count as accepted.
    """

    request_id: int
    tokens: Sequence[int]
    begin: int
    end: int
    first_row: int
    decoding: bool
    state: Any
    row: Callable[[tuple[int, ...]], Any]
    drafted: int = 0
    accepted: int = 0


class Speculator(Protocol):
    """Drafts tokens that the target model verifies.

    The engine calls `propose` before each decode step and `advance` after every step of the target
    model, also of a prompt. The first step of a request need not begin at its first token (others
    may have read that), and after a pause its last tokens may be read again. Drafts change the
    speed of an answer, never its distribution; a speculator that raises is switched off for the
    engine.
    """

    @property
    def max_drafts(self) -> int: ...

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """A draft for each request, in order; it may be empty."""
        ...

    def advance(self, steps: Sequence[Advance]) -> None:
        """The sequences of the last step that go on; hidden states of its rows are still valid."""
        ...

    def release(self, request_id: int) -> None:
        """The request is gone; drop what is held for it."""
        ...


@frozen(eq=False)
class SpeculatorContext:
    """What a speculator is made from.

    :ivar draft_tokens: most drafts of a round. :ivar vocab_size: drafts must be below it.
    :ivar model: the built model; a `PredictingModel` if the spec names a component.
    :ivar max_sequences: that decode at once. :ivar max_tokens: of a step.
    :ivar max_context: tokens of a sequence. :ivar device: of the model's tensors.
    """

    draft_tokens: int
    vocab_size: int
    model: Any
    max_sequences: int
    max_tokens: int
    max_context: int
    device: Any
