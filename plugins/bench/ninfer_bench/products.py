"""The products of a model: each weight, and how it may be multiplied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_bench.recording import weights_among
from ninfer_core.api import KernelRequest, OpContract
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.binder import Binder

MEMBERS = {"linear": "linear", "linear_group": "linear", "swiglu": "swiglu"}
"""Ops to what their weights are multiplied by, each by itself."""

Factory = Callable[..., Callable[..., Tensor]]
Variant = tuple[str, Mapping[str, Any], Factory]
"""As a kernel's ``variants`` gives them: the table, the row in it, the factory."""


class NotingBinder(Binder):
    """Binds as any, and notes to what.

    :ivar bound: requests and constants.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.bound: list[tuple[KernelRequest, dict[str, Any]]] = []

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        self.bound.append((request, constants))
        return super().bind(request, **constants)


@frozen(eq=False)
class Product:
    """All weights of a model that are alike.

    :ivar request: of one of them, for its kernel. :ivar contract: of its op.
    :ivar weights: with bytes of their own.
    """

    request: KernelRequest
    contract: OpContract
    weights: list[Weight]

    @property
    def name(self) -> str:
        weight = self.weights[0].info
        return f"{self.request.op} {weight.format.name} {list(weight.shape)}"

    @property
    def nbytes(self) -> int:
        """Of one weight."""
        return sum(plane.nbytes for plane in self.weights[0].planes.values())

    def rotated(self, nbytes: int) -> list[Weight]:
        """Weights, or copies of them, of so many bytes in all, so that no cache holds them."""
        count = max(1, -(-nbytes // self.nbytes))
        taken = self.weights[:count]
        for index in range(count - len(taken)):
            like = taken[index]
            planes = {name: plane.clone() for name, plane in like.planes.items()}
            taken.append(evolve(like, planes=planes))
        return taken

    def built(self, factory: Factory, weight: Weight) -> Callable[..., Tensor]:
        """A kernel of one weight."""
        free = {"bias": None} if self.request.op == "linear" else {}
        return factory(self.request, weight=weight, **free)

    def reference(self) -> Callable[..., Tensor]:
        """Of the first weight."""
        return self.built(self.contract.reference.load(), self.weights[0])

    def operands(self, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Random activations, and a result that nothing has written."""
        info, device = self.weights[0].info, next(iter(self.weights[0].planes.values())).device
        rows, depth = info.shape
        width = rows // 2 if self.request.op == "swiglu" else rows
        x = torch.randn(tokens, depth, device=device).to(dtype)
        return x, torch.full((tokens, width), torch.nan, dtype=dtype, device=device)


def products_of(binder: NotingBinder) -> list[Product]:
    """Those of everything that was bound, in that order."""
    found: dict[str, Product] = {}
    for request, constants in binder.bound:
        if request.op not in MEMBERS:
            continue
        for weight in weights_among(constants):
            one = evolve(request, op=MEMBERS[request.op], weights=(weight.info,))
            alike = found.setdefault(str(one), Product(one, binder.contracts[one.op], []))
            alike.weights.append(weight)
    return list(found.values())


def variants_of(product: Product, binder: Binder) -> list[Variant]:
    """Those of the kernel that multiplies it."""
    listed = binder.choose(product.request).spec.variants
    return [*listed.load()(product.request)] if listed else []
