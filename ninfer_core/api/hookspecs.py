"""The hooks a plugin may implement.

All of them are called once, at start-up, and return frozen specs; nothing here is ever called
inside a step. A plugin module (the target of the entry point, by convention ``plugin.py``) must not
import torch or triton: it names heavy code by ``"module:attribute"``.

A minimal plugin::

    from ninfer_core.api import hookimpl, KVCodecSpec

    NINFER_API = (1, 0)          # the API version the plugin was built for; required

    @hookimpl
    def ninfer_kv_codecs():
        return [KVCodecSpec(name="fp6", codec="my_codec.fp6:Codec")]

Every hook returns an iterable of its spec type; anything else, a duplicate name, or an exception
quarantines the plugin (or stops the start, if the plugin was asked for by name).
"""

from __future__ import annotations

from collections.abc import Iterable

from ninfer_core.api.markers import hookspec
from ninfer_core.api.ops import KernelSpec, OpContract
from ninfer_core.api.specs import (
    CommandSpec,
    ConstraintSpec,
    ConverterSpec,
    FormatSpec,
    HardwareProfileSpec,
    KVCodecSpec,
    LayoutSpec,
    ModelPackSpec,
    ProtocolSpec,
    SpeculatorSpec,
    StateTierSpec,
)


@hookspec
def ninfer_model_packs() -> Iterable[ModelPackSpec]:  # type: ignore[empty-body]
    """Architectures this plugin can run.

    When a model is opened, every pack's ``claim`` sees its description and the highest score wins;
    two equal highest scores are an error that ``--pack NAME`` settles. An exception in a claim
    quarantines the pack for this run (unless it was chosen with ``--pack``).
    """


@hookspec
def ninfer_hardware_profiles() -> Iterable[HardwareProfileSpec]:  # type: ignore[empty-body]
    """Machines this plugin knows.

    Without ``--profile`` every profile's ``detect`` is called and the highest score wins; equal
    highest scores are an error that ``--profile NAME`` settles. With ``--profile NAME`` only the
    distribution whose entry point has that name is imported. Kernels registered by the
    distribution of an unselected profile are not used.
    """


@hookspec
def ninfer_op_contracts() -> Iterable[OpContract]:  # type: ignore[empty-body]
    """Ops that kernels can be written for: what a model is bound by is checked against them.

    Give `OpContract.reference_kernel` of each that is not fused to ``ninfer_kernels``, so that
    models of that op run everywhere. Whether an op has a contract is the pack's and its kernels'
    affair: one without is bound with the constants as they are given.
    """


@hookspec
def ninfer_kernels() -> Iterable[KernelSpec]:  # type: ignore[empty-body]
    """Implementations of ops.

    For each op of a model the binder filters all kernels by device, capability, format and
    batch invariance, then asks ``accepts``; the highest priority that accepts wins, two equal ones
    are an error that names both (``--kernel OP=NAME`` settles it). ``ninfer kernels`` lists every
    candidate with the reason it was not taken.
    """


@hookspec
def ninfer_weight_formats() -> Iterable[FormatSpec]:  # type: ignore[empty-body]
    """Numeric formats of stored weights. Kernels match on `FormatSpec.structure`, so an affine
    group format runs on existing kernels at once."""


@hookspec
def ninfer_weight_layouts() -> Iterable[LayoutSpec]:  # type: ignore[empty-body]
    """Storage layouts of weight formats: exact pairs of pack and unpack."""


@hookspec
def ninfer_kv_codecs() -> Iterable[KVCodecSpec]:  # type: ignore[empty-body]
    """Storage types of the KV cache, chosen with ``--kv-dtype NAME``."""


@hookspec
def ninfer_speculators() -> Iterable[SpeculatorSpec]:  # type: ignore[empty-body]
    """Ways to draft tokens, chosen with ``--spec NAME``."""


@hookspec
def ninfer_converters() -> Iterable[ConverterSpec]:  # type: ignore[empty-body]
    """Ways to turn a source checkpoint into a `.ninfer` set."""


@hookspec
def ninfer_commands() -> Iterable[CommandSpec]:  # type: ignore[empty-body]
    """Subcommands of ``ninfer``. The commands of the core are registered through this hook too."""


@hookspec
def ninfer_constraint_engines() -> Iterable[ConstraintSpec]:  # type: ignore[empty-body]
    """Ways to hold answers to JSON schemas, regular expressions and grammars, chosen with
    ``--constraints NAME``; without it there must be no two."""


@hookspec
def ninfer_state_tiers() -> Iterable[StateTierSpec]:  # type: ignore[empty-body]
    """Places where ``--disk-cache`` keeps states for later processes, chosen with ``--state-tier
    NAME``; without it there must be no two."""


@hookspec
def ninfer_protocols() -> Iterable[ProtocolSpec]:  # type: ignore[empty-body]
    """Dialects of HTTP that ``ninfer-serve`` speaks, all at once; two that claim one path are an
    error that ``--no-plugin NAME`` settles."""
