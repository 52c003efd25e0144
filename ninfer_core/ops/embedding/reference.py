"""``embedding`` row by row, so that of a table of any size only rows that are asked for are made
dense."""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import ArtifactError, KernelRequest
from ninfer_core.artifact.weight import Weight


def bind(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    count = weight.info.shape[0]
    try:
        weight.part(0, count)
    except ArtifactError:  # rows are in tiles
        table = weight.dense()  # [V, H]
        return lambda ids, out: out.copy_(table.index_select(0, ids))
    return lambda ids, out: out.copy_(
        torch.stack([weight.part(row, count).dense()[0] for row in ids.tolist()]))
