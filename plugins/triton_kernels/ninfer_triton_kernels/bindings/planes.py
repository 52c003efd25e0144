"""Planes of the paged cache as kernels take them."""

from __future__ import annotations

import torch

from ninfer_core.state.views import PagedPlanes


class Planes:
    """Keys and values as kernels take them: four tensors, and what lies between pages of each."""

    def __init__(self, planes: PagedPlanes) -> None:
        tensors = []
        for name in ("key", "value"):
            stored = planes.planes[name]
            codes = stored["values"] if "values" in stored else stored["codes"]
            tensors += [codes, stored.get("scales", codes)]
        self.tensors = tuple(tensors)
        self.strides = tuple(tensor.stride(0) for tensor in tensors)
        keys, key_scales, values, value_scales = tensors
        if values.itemsize == 1:
            values = values.view(torch.int16)
        self.pairs = keys, key_scales, values, value_scales
        """As ``tensors``, codes of values two at a time if they are bytes."""
