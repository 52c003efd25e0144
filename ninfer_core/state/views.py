"""Persistent tensors of declared states, handed to a model when it is built."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from ninfer_core.api import KVCodec


@frozen(eq=False)
class PagedPlanes:
    """One layer of a paged state.

    :ivar codec_name: name of the KV codec (or the torch dtype name of uncoded planes).
    :ivar codec: encodes and decodes one plane; for uncoded planes it only casts.
    :ivar planes: plane name -> stored tensor name -> strided view of the byte pool,
        ``[num_pages + 1, 64 // tokens_per_entry, *shape]`` (inner dimensions contiguous; the page
        stride is the page's whole size). Page 0 is padding.
    """

    codec_name: str
    codec: KVCodec
    planes: Mapping[str, Mapping[str, Tensor]]


@frozen(eq=False)
class SlotPlanes:
    """One layer of a slot state; slot 0 is padding.

    :ivar committed: ``[num_slots + 1, *shape]``.
    :ivar record: ``[num_slots + 1, max_rows, *record_shape]``, rows of the last uncertain step.
    """

    committed: Tensor
    record: Tensor
