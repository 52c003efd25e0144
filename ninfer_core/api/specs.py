"""Frozen records that hooks register. Everything heavy is a :class:`LazyRef`.

A spec says what a thing is and when it applies; the behaviour behind its references is one of the
protocols of :mod:`ninfer_core.api.protocols`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, in_, instance_of, matches_re, optional

from ninfer_core.api.errors import RequestError
from ninfer_core.api.lazy import LazyRef, to_lazy, to_optional_lazy

NAME = and_(instance_of(str), matches_re(r"[a-z0-9][a-z0-9_.-]*"))


@frozen
class Claim:
    """An answer to "is this yours?".

    :ivar score: 1..100; the highest score wins, two equal highest scores are an error.
        Convention: 100 exact architecture and known dimensions, 50 the architecture, 10 a guess.
    :ivar reason: one line a user can read.
    """

    score: int = field(validator=[instance_of(int), ge(1)])
    reason: str


@frozen
class ModelDescription:
    """What is known of a model before any weight is read; the same for artifacts and sources.

    :ivar origin: ``artifact``, ``huggingface`` or ``gguf``.
    :ivar architectures: names as the origin gives them (``Qwen3_5ForCausalLM``, ``llama``).
    :ivar config: config of the text model, keys as the origin has them.
    :ivar components: for artifacts, the config of every component by id that is in use; with a
        draft head also ``proposal``: ``{domain, rows}``.
    """

    origin: Literal["artifact", "huggingface", "gguf"]
    architectures: tuple[str, ...]
    config: Mapping[str, Any]
    components: Mapping[str, Mapping[str, Any]] = field(factory=dict)


@frozen
class EmbeddedModel:
    """A model that a pack finds on the machine by name, without a path.

    :ivar name: accepted wherever a model path is.
    :ivar locate: ``() -> pathlib.Path`` of the source checkpoint; raises an error that says the
        fetching command if it is absent.
    :ivar requirement: the package that ships the checkpoint, pinned (``name==version``).
    :ivar sha256: digest of the checkpoint file.
    :ivar license: SPDX id of the weights' licence.
    :ivar default: whether commands without a model use it.
    :ivar components: that its artifact has.
    """

    name: str = field(validator=NAME)
    locate: LazyRef = field(converter=to_lazy)
    requirement: str
    sha256: str = field(validator=matches_re(r"[0-9a-f]{64}"))
    license: str
    default: bool = False
    components: tuple[str, ...] = ("text",)


@frozen
class ModelCard:
    """A published model, known without its weights.

    :ivar name: accepted by ``ninfer plan`` and ``ninfer doctor`` in the place of a path.
    :ivar outline: ``() -> ImportPlan``; nothing of it is read but names, shapes, parents, formats
        and the recipe.
    """

    name: str = field(validator=NAME)
    outline: LazyRef = field(converter=to_lazy)


@frozen
class ModelPackSpec:
    """An architecture the runtime can run.

    :ivar name: unique name of the pack.
    :ivar pack: zero-argument factory of a :class:`~ninfer_core.api.protocols.ModelPack`.
    :ivar claim: ``(ModelDescription) -> Claim | None``; must not import torch.
    :ivar embedded: models this pack brings by name.
    :ivar cards: published models that can be planned for by name.
    :ivar recipes: package whose ``*.toml`` files are conversion recipes by name, or "".
    """

    name: str = field(validator=NAME)
    pack: LazyRef = field(converter=to_lazy)
    claim: LazyRef = field(converter=to_lazy)
    embedded: tuple[EmbeddedModel, ...] = ()
    cards: tuple[ModelCard, ...] = ()
    recipes: str = ""


@frozen
class Detection:
    """What a hardware profile found on this machine.

    :ivar score: as in :class:`Claim`; None when the profile does not fit this machine.
    :ivar reason: why it fits or does not.
    """

    score: int | None = field(validator=optional([instance_of(int), ge(1)]))
    reason: str


@frozen
class HardwareProfileSpec:
    """A machine the runtime knows.

    :ivar name: what ``--profile`` takes; equal to the entry point's name.
    :ivar detect: ``() -> Detection``; cheap, must not import torch.
    :ivar profile: zero-argument factory of a
        :class:`~ninfer_core.api.protocols.HardwareProfile`; must work on machines without the
        hardware, because ``ninfer plan`` predicts for absent cards.
    """

    name: str = field(validator=NAME)
    detect: LazyRef = field(converter=to_lazy)
    profile: LazyRef = field(converter=to_lazy)


@frozen
class AffineGroup:
    """Structure of group-quantised weights: ``w = scale * code (+ minimum)``.

    Kernels match on this instead of on format names, so that a format registered by a pack runs
    on kernels that have never heard of it.

    :ivar bits: bits of a code.
    :ivar group: consecutive elements of a row that share a scale.
    :ivar signed: whether codes are two's complement.
    :ivar minimum: whether a minimum per group is added.
    :ivar scale_dtype: torch name of the scale's (and minimum's) type.
    """

    bits: int
    group: int
    signed: bool = True
    minimum: bool = False
    scale_dtype: str = "float16"


@frozen
class FormatSpec:
    """A numeric format of weights (what a stored matrix means, not how its bytes lie).

    :ivar name: name in artifacts, e.g. ``q4_g64_fp16``.
    :ivar codec: zero-argument factory of a :class:`~ninfer_core.api.protocols.FormatCodec`.
    :ivar bits_per_weight: average, scales included; for ledgers.
    :ivar structure: see :class:`AffineGroup`; None for direct and irregular formats.
    """

    name: str = field(validator=NAME)
    codec: LazyRef = field(converter=to_lazy)
    bits_per_weight: float
    structure: AffineGroup | None = None


@frozen
class LayoutSpec:
    """How the bytes of a format lie in an object; an exact pair of pack and unpack.

    :ivar name: name in artifacts, e.g. ``row_split_k128_v1``.
    :ivar formats: names of the formats it can hold.
    :ivar layout: zero-argument factory of a :class:`~ninfer_core.api.protocols.StorageLayout`.
    :ivar alignment: byte alignment of an object in the payload.
    """

    name: str = field(validator=NAME)
    formats: tuple[str, ...]
    layout: LazyRef = field(converter=to_lazy)
    alignment: int = 256


@frozen
class KVCodecSpec:
    """A storage type of the KV cache, chosen with ``--kv-dtype``.

    :ivar codec: zero-argument factory of a :class:`~ninfer_core.api.protocols.KVCodec`.
    """

    name: str = field(validator=NAME)
    codec: LazyRef = field(converter=to_lazy)


@frozen
class SpeculatorSpec:
    """A way to draft tokens.

    :ivar speculator: factory ``(SpeculatorContext) -> Speculator``.
    :ivar component: component of the artifact that it needs (``mtp``), or "". Optional components
        are loaded only when something needs them.
    :ivar max_drafts: most drafts of a round that it can be asked for.
    """

    name: str = field(validator=NAME)
    speculator: LazyRef = field(converter=to_lazy)
    component: str = ""
    max_drafts: int = field(default=15, validator=[instance_of(int), ge(1)])


@frozen
class ConverterSpec:
    """Turns a source checkpoint into a `.ninfer` set.

    :ivar convert: a :class:`~ninfer_core.api.protocols.Converter` (a plain function will do).
    :ivar outline: ``(ImportPlan, registry) -> Artifact``: the catalogue that a conversion would
        write, without weights; None if it cannot.
    :ivar survey: ``(Path, PluginReport, name of a pack or None) -> Artifact``: the same of a source
        checkpoint, of which headers are enough; None if it cannot.
    """

    name: str = field(validator=NAME)
    convert: LazyRef = field(converter=to_lazy)
    outline: LazyRef | None = field(default=None, converter=to_optional_lazy)
    survey: LazyRef | None = field(default=None, converter=to_optional_lazy)


@frozen
class CommandSpec:
    """A subcommand of ``ninfer``.

    :ivar summary: one line for ``ninfer --help``.
    :ivar run: ``(argparse.Namespace) -> int``, the exit code; errors are raised as `NInferError`.
    :ivar options: ``(argparse.ArgumentParser) -> None`` declares its options; must not import
        torch. Options that choose plugins and the log level are there already.
    """

    name: str = field(validator=NAME)
    summary: str
    run: LazyRef = field(converter=to_lazy)
    options: LazyRef | None = field(default=None, converter=to_optional_lazy)


@frozen
class ConstraintSpec:
    """A way to hold answers to grammars.

    :ivar compiler: factory ``(ConstraintContext) -> ConstraintCompiler``.
    """

    name: str = field(validator=NAME)
    compiler: LazyRef = field(converter=to_lazy)


@frozen
class StateTierSpec:
    """A place for kept states that outlives the process.

    :ivar tier: factory ``(StateTierContext) -> StateTier``; raises `ConfigError` if the location is
        of no use.
    """

    name: str = field(validator=NAME)
    tier: LazyRef = field(converter=to_lazy)


@frozen
class ProtocolSpec:
    """A dialect of HTTP that ``ninfer-serve`` speaks.

    :ivar routes: ``(service) -> Sequence`` of Litestar route handlers, routers or controllers;
        the service is what docs/serving.md describes.
    """

    name: str = field(validator=NAME)
    routes: LazyRef = field(converter=to_lazy)


@frozen
class StatePlane:
    """One tensor of a paged state.

    :ivar shape: of an entry, e.g. ``(num_kv_heads, head_dim)``.
    :ivar tokens_per_entry: consecutive tokens that share one; divides the 64 of a page.
    """

    name: str
    shape: tuple[int, ...]
    tokens_per_entry: int = field(default=1, validator=in_((1, 2, 4, 8, 16, 32, 64)))


@frozen
class PagedStateSpec:
    """State that grows with the tokens of a sequence and lives in pages of 64 tokens.

    :ivar name: e.g. ``kv``.
    :ivar layers: number of layers that have one.
    :ivar planes: tensors per layer, stored by the KV codec chosen at launch, or, with ``dtype``,
        as they are.
    :ivar dtype: torch name for planes that must not be quantised; None = the KV codec.
    """

    name: str
    layers: int
    planes: tuple[StatePlane, ...]
    dtype: str | None = None


@frozen
class SlotStateSpec:
    """State of a fixed size per sequence, held in a state slot (recurrent matrices, tails).

    Rows of a step that may still be rejected leave the committed state as it is and write what is
    needed to redo them into the slot's *record*; the next step first applies the accepted ones.

    :ivar shape: per layer and slot.
    :ivar record_shape: per layer, slot and row.
    """

    name: str
    layers: int
    shape: tuple[int, ...]
    record_shape: tuple[int, ...]
    dtype: str = "float32"


StateSpec = PagedStateSpec | SlotStateSpec


@frozen
class ParameterSpec:
    """A logical parameter of a model.

    :ivar name: logical name in artifacts, e.g. ``text/layers/3/mlp/down``.
    :ivar shape: logical shape; ``(out, in)`` for projections.
    :ivar kind: ``projection`` (may be quantised), ``table`` (rows are gathered; may be quantised)
        or ``direct`` (norms, biases: stored as they are).
    :ivar tied_to: another parameter whose object this one shares, or "".
    :ivar inputs: names of the activations a projection is multiplied with; artifacts record them
        as its uses.
    :ivar on_host: of a table of which a step reads few rows of very many: it stays in host memory,
        beside what a machine's budget counts; on a CPU it is a view of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["projection", "table", "direct"] = field(
        default="projection", validator=in_(("projection", "table", "direct"))
    )
    tied_to: str = ""
    inputs: tuple[str, ...] = ()
    on_host: bool = False


@frozen
class KernelWork:
    """The largest things that kernels of a launch are given.

    :ivar matrix: rows and columns of the largest stored matrix, heads and experts left out.
    :ivar max_tokens: of a step. :ivar decode_tokens: of a step of all sequences.
    :ivar max_context: tokens of a sequence.
    :ivar attention_width: query heads times their size, of layers that attend to all of it.
    :ivar index_block: tokens that share an index key, where attention selects; else 0.
    :ivar pair_width: numbers that all experts of a token give; 0 without experts.
    """

    matrix: tuple[int, int]
    max_tokens: int
    decode_tokens: int
    max_context: int
    attention_width: int
    index_block: int = 0
    pair_width: int = 0


@frozen
class MachineFigures:
    """What limits a machine, for predictions; every figure says where it comes from.

    :ivar name: of the machine or card.
    :ivar memory_bytes: that weights and state may use in total.
    :ivar read_bytes_per_s: achievable streaming read bandwidth.
    :ivar flops: achievable matrix rate in FLOP/s by activation dtype.
    :ivar launch_s: cost of one kernel launch in a step.
    :ivar source: ``measured`` (how, when), ``datasheet`` ...
    :ivar host_bytes_per_s: of copies from host memory; 0 if that is the memory of the card.
    :ivar ranks: machines that share every step, each with these figures; they exchange partial sums
        at ``link_bytes_per_s``, after ``exchange_s`` each time.
    """

    name: str
    memory_bytes: int
    read_bytes_per_s: float
    flops: Mapping[str, float]
    launch_s: float
    source: str
    host_bytes_per_s: float = 0.0
    ranks: int = 1
    link_bytes_per_s: float = 0.0
    exchange_s: float = 0.0


def _within(default: float, low: float, high: float, *, above: bool = False) -> Any:
    """A field of ``low..high``, without ``low`` if ``above``; NaN is in no range."""

    def check(_: object, attribute: Attribute[Any], value: float) -> None:
        if not (low < value <= high or (value == low and not above)):
            span = f"{'above ' if above else ''}{low} to {high}"
            raise RequestError(f"{attribute.name} is out of range", why=f"{value} is not {span}")

    return field(default=default, validator=check)


@frozen
class SamplingParams:
    """How tokens of one request are drawn. The order of the steps is: penalties, mask, top-k,
    temperature, min-p, top-p, draw. Values out of range raise `RequestError`.

    :ivar temperature: 0..2; 0 is greedy (argmax; penalties still apply).
    :ivar top_k: keep the k most likely; 0 = all.
    :ivar top_p: nucleus mass, 0..1; 0 keeps only the most likely.
    :ivar min_p: drop tokens below ``min_p`` times the most likely one's probability.
    :ivar presence_penalty: subtracted once from every token generated so far, -2..2.
    :ivar frequency_penalty: subtracted per occurrence among generated tokens, -2..2.
    :ivar repetition_penalty: > 0; divides positive and multiplies negative logits of tokens that
        occur in prompt or output (CTRL, section 4.1).
    :ivar seed: key of the counter-based generator; the same seed, position and purpose give the
        same draw whatever else runs.
    """

    temperature: float = _within(0.0, 0, 2)
    top_k: int = _within(0, 0, 2**31 - 1)
    top_p: float = _within(1.0, 0, 1)
    min_p: float = _within(0.0, 0, 1)
    presence_penalty: float = _within(0.0, -2, 2)
    frequency_penalty: float = _within(0.0, -2, 2)
    repetition_penalty: float = _within(1.0, 0, 1000, above=True)
    seed: int = _within(0, 0, 2**64 - 1)
