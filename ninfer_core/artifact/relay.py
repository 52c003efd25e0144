"""Weights laid out anew while they are loaded, as the kernels that will read them want them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch

from ninfer_core.api import ArtifactError, LayoutSpec, ParameterSpec, StorageLayout
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.rows import Planes, Span, cut

ALIGNED = 256
"""Bytes that an image begins at a multiple of."""

RUN_ELEMENTS, RUN_ROWS = 1 << 25, 128
"""Most elements that are held twice, and what the rows of a run of a matrix are a multiple of: of
a bank, runs are whole matrices."""


def relays(
    artifact: Artifact, parameters: Iterable[ParameterSpec], wanted: Mapping[str, str],
    layouts: Mapping[str, LayoutSpec],
) -> dict[str, str]:
    """Objects, by id, to the names of layouts to have them in: those that only projections lie in.

    :param wanted: format -> layout; one that is unknown, cannot hold an object, or has tiles of
        rows that a parameter would cut leaves it as it is.
    """
    kinds: dict[str, set[str]] = {}
    spans: dict[str, list[Span]] = {}
    for spec in parameters:
        for span in artifact.parts(spec.tied_to or spec.name):
            kinds.setdefault(span[0].id, set()).add(spec.kind)
            spans.setdefault(span[0].id, []).append(span)
    found = {}
    for id, own in spans.items():
        layout = layouts.get(wanted.get(own[0][0].format, ""))
        if layout and kinds[id] == {"projection"} and _keeps_whole(layout.layout.load()(), own):
            found[id] = layout.name
    return found


def _keeps_whole(layout: StorageLayout, spans: Iterable[Span]) -> bool:
    """Whether a layout holds a tensor, and spans of it are whole tiles (of a bank, only whole
    matrices are ever used)."""
    for tensor, begin, end in spans:
        try:
            planes = layout.planes(tensor.format, tensor.shape)
        except ArtifactError:
            return False
        tile = max(tensor.num_rows // plane.shape[0] for plane in planes if plane.shape)
        width = tile * tensor.num_elements // tensor.num_rows
        if len(tensor.shape) == 2 and (begin % width or end % width):
            return False
    return True


class Relay:
    """Lays tensors out anew as they come, in one piece of memory: an allocator would cut off some
    of each, and what is freed between them would be of no use.

    :param layouts: tensor -> the layout that it is to have.
    """

    def __init__(
        self, layouts: Mapping[TensorObject, StorageLayout], device: torch.device
    ) -> None:
        self._layouts, self._end = layouts, 0
        sizes = (new.nbytes(each.format, each.shape) for each, new in layouts.items())
        self._whole = torch.empty(sum(map(_aligned, sizes)), dtype=torch.uint8, device=device)
        most = 0 if device.type == "cpu" else max((each.bytes for each in layouts), default=0)
        self._passing = self._whole.new_empty(most)

    def memory(self, tensor: TensorObject) -> torch.Tensor | None:
        """Where a tensor that will be laid out anew may lie until then; None for others, and on a
        CPU, where it may be a view of its file."""
        is_here = tensor in self._layouts and len(self._passing) > 0
        return self._passing[: tensor.bytes] if is_here else None

    def planes(
        self, tensor: TensorObject, planes: Planes, old: StorageLayout
    ) -> Mapping[str, torch.Tensor]:
        """The planes of a tensor in the layout that it is to have, each tensor once."""
        if tensor not in self._layouts:
            return planes
        new, begin = self._layouts[tensor], self._end
        nbytes = new.nbytes(tensor.format, tensor.shape)
        self._end += _aligned(nbytes)
        return relaid(tensor, planes, old, new, self._whole[begin : begin + nbytes])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def relaid(
    tensor: TensorObject, planes: Planes, old: StorageLayout, new: StorageLayout,
    image: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The planes of a tensor in another layout, by runs of rows.

    :param image: memory for them, as many bytes as the layout says.
    """
    name, shape = tensor.format, tensor.shape
    whole = {info.name: plane_view(image, info) for info in new.planes(name, shape)}
    unit = RUN_ROWS if len(shape) == 2 else 1
    step = max(1, RUN_ELEMENTS // prod(shape[1:]) // unit) * unit
    for begin in range(0, 0 if image.is_meta else shape[0], step):
        end = min(begin + step, shape[0])
        rows, part = (begin, end, shape[0], tensor.id), (end - begin, *shape[1:])
        run = new.pack(name, old.unpack(name, part, cut(planes, *rows)))
        for info in new.planes(name, part):
            cut(whole, *rows)[info.name].copy_(plane_view(run, info))
    return whole
