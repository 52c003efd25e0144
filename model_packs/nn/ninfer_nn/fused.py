"""Ops that take the place of others where a kernel does all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ninfer_core.api import BuildContext, UnsupportedError


def bind_fused(
    context: BuildContext, op: str, sizes: Mapping[str, Any] | None = None, **constants: Any
) -> Callable[..., Tensor] | None:
    """The kernel of a fused op; None if none takes it."""
    try:
        kernel: Callable[..., Tensor] = context.bind(op, sizes=sizes, **constants)
    except UnsupportedError:
        return None
    return kernel
