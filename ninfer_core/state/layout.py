"""Where states lie in memory: sizes, and typed views of byte matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ninfer_core.api import KVCodecSpec, PagedStateSpec, StateSpec
from ninfer_core.state.codecs import DirectCodec
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_core.state.views import PagedPlanes, SlotPlanes

ALIGNMENT = 64
"""Bytes; of every tensor within a row, and of a row."""

Views = dict[tuple[str, int], PagedPlanes | SlotPlanes]
"""By (state, layer)."""


class Cursor:
    """Takes tensors one after another out of each row of a byte matrix."""

    def __init__(self, rows: Tensor) -> None:
        self._rows, self.nbytes = rows, 0

    def take(self, dtype: str, *shape: int) -> Tensor:
        """The next view ``[rows, *shape]``."""
        element: torch.dtype = getattr(torch, dtype)
        begin, end = self.nbytes, self.nbytes + prod(shape) * element.itemsize
        self.nbytes = -(-end // ALIGNMENT) * ALIGNMENT
        if begin == end:  # nothing has no stride that would suit the element
            return self._rows.new_empty((len(self._rows), *shape), dtype=element)
        return self._rows[:, begin:end].view(element).view(len(self._rows), *shape)


class StateLayout:
    """Sizes of the declared states, and their views once there is memory.

    A page holds 64 tokens of every layer and plane of all paged states; a slot holds the committed
    states of all layers and a record the rows of an uncertain step.

    :param kv: storage of the paged states that have no dtype of their own.
    :param max_verify_rows: most recorded rows of a step.
    """

    def __init__(
        self, specs: Sequence[StateSpec], kv: KVCodecSpec, *, max_verify_rows: int
    ) -> None:
        self._specs, self._max_rows = specs, max_verify_rows
        self._kv_name, self._kv_codec = kv.name, kv.codec.load()()
        endless = torch.empty((1, 1 << 50), dtype=torch.uint8, device="meta")
        cursors = [Cursor(endless) for _ in range(3)]
        self._lay_out(*cursors)
        page_bytes, self.committed_bytes, self.record_bytes = (each.nbytes for each in cursors)
        self.slot_bytes = self.committed_bytes + self.record_bytes
        self.bytes_per_token = page_bytes // PAGE_TOKENS
        # without paged states, a page is what holds a snapshot of one slot
        self.page_bytes = page_bytes or self.slot_bytes or ALIGNMENT

    def views(self, pages: Tensor, slots: Tensor, records: Tensor) -> Views:
        """Of byte matrices, uint8 ``[rows, bytes]``."""
        return self._lay_out(Cursor(pages), Cursor(slots), Cursor(records))

    def _lay_out(self, page: Cursor, slot: Cursor, record: Cursor) -> Views:
        views: Views = {}
        for spec in self._specs:
            for layer in range(spec.layers):
                if isinstance(spec, PagedStateSpec):
                    views[spec.name, layer] = self._planes(spec, page)
                else:
                    views[spec.name, layer] = SlotPlanes(
                        slot.take(spec.dtype, *spec.shape),
                        record.take(spec.dtype, self._max_rows, *spec.record_shape),
                    )
        return views

    def _planes(self, spec: PagedStateSpec, page: Cursor) -> PagedPlanes:
        codec = DirectCodec(spec.dtype) if spec.dtype else self._kv_codec
        tensors = {
            plane.name: {
                part: page.take(dtype, PAGE_TOKENS // plane.tokens_per_entry, *shape)
                for part, dtype, shape in codec.planes(plane.shape)
            }
            for plane in spec.planes
        }
        return PagedPlanes(spec.dtype or self._kv_name, codec, tensors)
