"""Views of parts of shared buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ninfer_core.api import BuildContext


def columns(
    context: BuildContext, name: str, widths: Sequence[int], dtype: torch.dtype | None = None
) -> Callable[[int], tuple[Tensor, ...]]:
    """Columns of the first T rows of a buffer, as views that are made once for each of the usual
    T: slicing costs as much as a small kernel."""
    rows = context.buffer(name, sum(widths), dtype=dtype)
    return lru_cache(64)(lambda num_tokens: rows(num_tokens).split(widths, dim=1))
