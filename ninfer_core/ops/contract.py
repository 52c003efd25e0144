"""What an op is: its mathematics, shapes and numerics, apart from any implementation."""

from __future__ import annotations

from attrs import frozen

from ninfer_core.api import LazyRef


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

    name: str
    constants: tuple[str, ...]
    weights: tuple[str, ...]
    sizes: tuple[str, ...]
    reference: LazyRef
    fused: bool = False
