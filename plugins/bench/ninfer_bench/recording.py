"""What a model's steps call: every bound op with what it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from math import prod
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.binder import Binder
from ninfer_core.state.views import PagedPlanes, SlotPlanes

PRODUCTS = ("linear", "linear_group", "moe_router", "swiglu")
"""Ops that multiply with every weight that they have."""


@frozen(eq=False)
class Call:
    """One call of a bound op, to be made again.

    :ivar constants: what the op was bound to.
    """

    request: KernelRequest
    kernel: str
    constants: dict[str, Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        self.function(*self.arguments)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for calls that differ in nothing but their memory."""
        shapes = [tuple(each.shape) for each in self.arguments if isinstance(each, Tensor)]
        return self.request.op, self.kernel, str(self.request), *shapes

    @property
    def weights(self) -> list[Weight]:
        return weights_among(self.constants)

    @property
    def banks(self) -> list[Weight]:
        """Of its weights those of experts, of which a token reads a few."""
        if self.request.op not in ("moe_mlp", "shared_moe_mlp"):
            return []
        return [self.constants["gate_up"], self.constants["down"]]

    def weight_bytes(self, num_tokens: int) -> int:
        """That must be read: of tables the rows that are gathered, of experts those that so many
        random choices meet."""
        sizes, banks = self.request.sizes, bytes_of(self.banks)
        rest = bytes_of(self.weights) - banks
        if self.request.op == "embedding":
            return rest * num_tokens // self.weights[0].info.shape[0]
        if not banks:
            return rest
        met = 1 - (1 - sizes["top_k"] / sizes["num_experts"]) ** num_tokens
        return rest + round(banks * met)

    def activation_bytes(self) -> int:
        """Of tensors given to it, each once."""
        tensors = {each.data_ptr(): each for each in self.arguments if isinstance(each, Tensor)}
        return sum(prod(each.shape) * each.itemsize for each in tensors.values())

    def state_bytes(self, num_rows: int, context: int) -> int:
        """Keys and values of the context, or slot states read and written, of so many rows."""
        planes = self.constants.get("planes")
        if isinstance(planes, SlotPlanes):
            return 2 * num_rows * planes.committed[0].nbytes
        if isinstance(planes, PagedPlanes) and self.request.op == "paged_attention":
            stored = (each for parts in planes.planes.values() for each in parts.values())
            return num_rows * context * sum(each[0, 0].nbytes for each in stored)
        return 0

    def matrix_flops(self, num_tokens: int) -> int:
        """Operations of products with matrices, of experts those that tokens choose."""
        if not self.banks and self.request.op not in PRODUCTS:
            return 0
        sizes, banks = self.request.sizes, elements_of(self.banks)
        chosen = banks * sizes["top_k"] // sizes["num_experts"] if banks else 0
        return 2 * num_tokens * (elements_of(self.weights) - banks + chosen)


def bytes_of(weights: Iterable[Weight]) -> int:
    return sum(plane.nbytes for each in weights for plane in each.planes.values())


def elements_of(weights: Iterable[Weight]) -> int:
    return sum(prod(each.info.shape) for each in weights)


def weights_among(constants: Mapping[str, Any]) -> list[Weight]:
    """Of what an op is bound to, also those in tuples."""
    flat = chain.from_iterable(each if isinstance(each, tuple) else (each,)
                               for each in constants.values())
    return [each for each in flat if isinstance(each, Weight)]


class RecordingBinder(Binder):
    """Binds as any, and notes calls while it is asked to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._calls: list[Call] | None = None

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """The calls that are made meanwhile."""
        calls: list[Call] = []
        self._calls = calls
        try:
            yield calls
        finally:
            self._calls = None

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        """A plain function: products are called alone later, so none is told that it is among
        others."""
        function, kernel = super().bind(request, **constants), self.choose(request).spec.name

        def noted(*arguments: Any) -> Any:
            if self._calls is not None:
                self._calls.append(Call(request, kernel, constants, function, arguments))
            return function(*arguments)

        return noted


def clocks() -> dict[str, int]:
    """MHz of the processors of a GPU now, where its driver says so."""
    try:
        return {"sm_mhz": torch.cuda.clock_rate()}
    except (RuntimeError, ModuleNotFoundError, AssertionError):
        return {}
