"""Ops and what implements them: contracts, kernels, and the requests by which one is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from attrs.validators import deep_iterable, instance_of

from ninfer_core.api.errors import PluginError
from ninfer_core.api.lazy import LazyRef, to_lazy, to_optional_lazy
from ninfer_core.api.specs import NAME, FormatSpec

_NAMES = deep_iterable(instance_of(str), instance_of(tuple))


@frozen
class WeightInfo:
    """Static facts of a weight, known without loading it.

    :ivar shape: logical shape, ``(N, K)`` = (out, in) for matrices.
    """

    shape: tuple[int, ...]
    format: FormatSpec
    layout: str


@frozen
class KernelRequest:
    """The static key an op is bound by. Equal requests give the same kernel.

    :ivar op: name of an op contract.
    :ivar device: ``cpu`` or ``cuda``.
    :ivar capability: compute capability as ``major * 10 + minor``; 0 on a CPU.
    :ivar dtype: torch name of the activation type.
    :ivar weights: facts of the op's weight constants, in the contract's order.
    :ivar kv_codec: name of the KV codec for ops on paged state, else "".
    :ivar max_tokens: most rows one call will bring.
    :ivar sizes: further static sizes by the contract's names (``num_heads``, ``head_dim`` ...).
    """

    op: str
    device: str
    dtype: str
    capability: int = 0
    weights: tuple[WeightInfo, ...] = ()
    kv_codec: str = ""
    max_tokens: int = 1
    sizes: Mapping[str, Any] = field(factory=dict)


@frozen
class KernelSpec:
    """One implementation of an op.

    :ivar op: name of the op contract it implements.
    :ivar name: unique, e.g. ``cpu.linear``.
    :ivar factory: ``(KernelRequest, **constants) -> callable``; called once per bound op, with the
        contract's constants (weights, state planes, tables); returns the contract's callable.
    :ivar accepts: ``(KernelRequest) -> str | None``: None to accept, else the reason for refusal;
        called after the declarative filters below have passed.
    :ivar priority: higher wins among those that accept; equal priorities are an error.
        The reference implementations of the core have priority -100.
    :ivar devices: device types it runs on.
    :ivar formats: weight formats it takes by name; empty means any (``accepts`` decides).
    :ivar capability: inclusive range of compute capabilities; None for CPU kernels.
    :ivar graph_safe: whether it may run inside a captured graph.
    :ivar batch_invariant: a row gets the same bits whatever else is in the call.
    :ivar tolerance: name of the conformance kit's tolerance that it is held to.
    :ivar source: where the method comes from (paper section, repository) or ``own``.
    :ivar facts: ``(KernelRequest) -> str | None``: what is known of its code on the request's card,
        for ``ninfer plan``; must work where the card is absent.
    :ivar variants: ``(KernelRequest) -> Sequence[(table, row, factory)]``: other sizes of its
        launches, for ``ninfer bench tune``; ``row``, of numbers and lists of them, is what the
        kernel's table of sizes would have in the TOML array ``table``, the factory is as above.
    """

    op: str
    name: str = field(validator=NAME)
    factory: LazyRef = field(converter=to_lazy)
    accepts: LazyRef | None = field(default=None, converter=to_optional_lazy)
    priority: int = 0
    devices: tuple[str, ...] = ("cpu",)
    formats: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    graph_safe: bool = False
    batch_invariant: bool = False
    tolerance: str = "fp32"
    source: str = "own"
    facts: LazyRef | None = field(default=None, converter=to_optional_lazy)
    variants: LazyRef | None = field(default=None, converter=to_optional_lazy)


@frozen
class OpContract:
    """An op. The prose of the contract is the docstring of its ``contract`` module.

    :ivar name: what kernels register for.
    :ivar constants: keyword arguments of a kernel's factory, fixed for the life of the model.
    :ivar weights: which of the constants are weights, in the order of `KernelRequest.weights`.
    :ivar sizes: names in `KernelRequest.sizes`.
    :ivar reference: ``(KernelRequest, **constants) -> callable``, the naive oracle in FP32/FP64.
    :ivar fused: whether it takes the place of other ops where a kernel does all of them: its
        reference is an oracle alone, and never runs in their place.
    """

    name: str = field(validator=NAME)
    constants: tuple[str, ...] = field(validator=_NAMES)
    weights: tuple[str, ...] = field(validator=_NAMES)
    sizes: tuple[str, ...] = field(validator=_NAMES)
    reference: LazyRef = field(converter=to_lazy)
    fused: bool = field(default=False, validator=instance_of(bool))

    @weights.validator
    def _check_weights(self, attribute: object, value: tuple[str, ...]) -> None:
        if unknown := sorted({*value} - {*self.constants}):
            raise PluginError(f"weights {unknown} are no constants", where=f"op {self.name}",
                              fix="name them among the constants, too")

    def reference_kernel(self) -> KernelSpec:
        """The reference as a kernel: what runs where nothing better is installed."""
        return KernelSpec(
            self.name, f"reference.{self.name}", self.reference, priority=-100,
            devices=("cpu", "cuda"), batch_invariant=True, tolerance="exact",
        )
