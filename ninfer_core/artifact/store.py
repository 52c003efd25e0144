"""Weights by logical name: views of the mapped files on a CPU, streamed copies elsewhere."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

import torch
from attrs import field, frozen
from torch import Tensor

from ninfer_core.api import (
    ArtifactError,
    CapacityError,
    FormatSpec,
    LayoutSpec,
    PluginError,
    Progress,
    StorageLayout,
    WeightInfo,
)
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.mapping import joined, read_at_random
from ninfer_core.artifact.relay import Relay
from ninfer_core.artifact.rows import Planes, Rows, cut, rows_of, stack
from ninfer_core.artifact.schema import malformed
from ninfer_core.artifact.weight import Weight

S = TypeVar("S")
_CACHE_LINE = 64


@frozen
class LoadReport:
    """What loading took. Of ``nbytes``, ``mapped_bytes`` are views of files instead of copies, and
    ``relaid_bytes`` were laid out anew."""

    nbytes: int
    mapped_bytes: int
    relaid_bytes: int
    seconds: float


@frozen(eq=False)
class WeightStore:
    """Loaded weights; `load_weights` makes it. ``relaid``: objects, by id, to the layouts they have
    now."""

    artifact: Artifact
    formats: Mapping[str, FormatSpec]
    layouts: Mapping[str, StorageLayout]
    _planes: dict[str, Planes]
    report: LoadReport
    relaid: Mapping[str, str]
    _weights: dict[tuple[str, ...], Weight] = field(factory=dict, init=False)

    def weight(self, *names: str) -> Weight:
        """One parameter, or several stacked by rows in the order given.

        Consecutive rows of one object are a view. Others are concatenated, once; objects that are
        whole in it become views of the result, so that nothing is held twice.

        :raises ArtifactError: if a name is unknown or was not loaded, or rows do not stack.
        :raises PluginError: if no name is given.
        """
        if not names:
            raise PluginError("a model asks for a weight of no parameters")
        if names not in self._weights:
            runs = rows_of(self.artifact, names)
            info, planes = self._info(runs), self._join(runs)
            codec, layout = info.format.codec.load()(), self.layouts[info.layout]
            self._weights[names] = Weight(info, planes, codec, layout)
        return self._weights[names]

    def weight_runs(self, *names: str) -> tuple[Weight, ...]:
        """Parameters in the order given, as few weights as possible: neighbours that stack are one.

        :raises ArtifactError: as `weight` does.
        """
        return tuple(self.weight(*run) for _, run in groupby(names, self._kind))

    def tensor(self, name: str) -> Tensor:
        """The values of a parameter as a new tensor: fp32, or int32 for integers."""
        return self.weight(name).dense()

    def _info(self, runs: Sequence[Rows]) -> WeightInfo:
        tensor, rows = runs[0].tensor, sum(run.count for run in runs)
        shape = (rows, *tensor.shape[1:]) if tensor.shape else ()
        layout = self.relaid.get(tensor.id, tensor.layout)
        return WeightInfo(shape, _known(self.formats, tensor.format, runs[0].where), layout)

    def _kind(self, name: str) -> Hashable:
        """What rows have in common that stack: scalars of their objects belong to it."""
        tensor = rows_of(self.artifact, [name])[0].tensor
        planes = self._planes.get(tensor.id, {})
        scalars = tuple(  # on meta they are unknown: objects that have any do not stack
            tensor.id if plane.is_meta else plane.item()
            for plane in planes.values() if not plane.ndim
        )
        layout = self.relaid.get(tensor.id, tensor.layout)
        return tensor.format, layout, tensor.shape[1:], scalars

    def _join(self, runs: Sequence[Rows]) -> Planes:
        absent = [run.tensor.id for run in runs if run.tensor.id not in self._planes]
        if absent:
            raise ArtifactError(
                "a parameter was not loaded", where=str(self.artifact.path),
                why=f"objects {absent} were not selected", fix="select it when loading",
            )
        pieces = [
            cut(self._planes[run.tensor.id], run.begin, run.end, run.tensor.num_rows, run.where)
            for run in runs
        ]
        if len(pieces) == 1:
            return pieces[0]
        stacked, total, at = stack(runs, pieces), sum(run.count for run in runs), 0
        for run in runs:
            end = at + run.count
            if run.count == run.tensor.num_rows:
                self._planes[run.tensor.id] = cut(stacked, at, end, total, run.where)
            at = end
        return stacked


def load_weights(
    artifact: Artifact, *, formats: Mapping[str, FormatSpec], layouts: Mapping[str, LayoutSpec],
    device: str | torch.device = "cpu", budget_bytes: int | None = None,
    progress: Progress | None = None, select: Iterable[str] | None = None,
    relay: Mapping[str, str] | None = None, on_host: Collection[str] = (),
) -> WeightStore:
    """Materialise parameters. What can be refused is refused before the first weight is read.

    :param device: ``meta`` has everything but the values; no file is touched then.
    :param budget_bytes: most bytes of weights, mapped ones included, those on the host not.
    :param select: names of parameters, None for all; only files that hold them need to be there.
    :param relay: objects, by id, to the names of layouts that hold them, in which they are laid out
        anew; of the bytes as they are stored, no more than one object is held beside them.
    :param on_host: parameters that stay in host memory, whatever the device.
    :raises ArtifactError: for unknown names, formats and layouts, sizes that do not fit them, and
        absent or foreign files.
    :raises CapacityError: if the weights exceed the budget.
    """
    names = artifact.bindings if select is None else select
    wanted = {tensor.id: tensor for name in names for tensor, _, _ in artifact.parts(name)}
    nbytes = sum(tensor.bytes for tensor in wanted.values())
    stay = {tensor.id: tensor.bytes for n in on_host for tensor, _, _ in artifact.parts(n)}
    counted = nbytes - sum(stay.values())
    if budget_bytes is not None and counted > budget_bytes:
        why = f"they take {counted:,} bytes of a budget of {budget_bytes:,}"
        fix = "convert the model to a smaller format, or use a machine with more memory"
        raise CapacityError("the weights do not fit", where=str(artifact.path), why=why, fix=fix)
    used = {t.layout: _layout(artifact, t, formats, layouts) for t in wanted.values()}
    target, planes = torch.device(device), dict[str, Planes]()
    host = torch.device("meta" if target.type == "meta" else "cpu")
    pieces = {} if target.type == "meta" else {
        t.id: artifact.shards.read(t.offset, t.bytes) for t in wanted.values()
    }
    relay = {id: name for id, name in (relay or {}).items() if id in wanted}
    used |= {name: layouts[name].layout.load()() for name in {*relay.values()}}
    anew = Relay({wanted[id]: used[name] for id, name in relay.items()}, target)
    start, done, mapped = time.monotonic(), 0, 0
    for tensor in wanted.values():
        place = host if tensor.id in stay else target
        old, memory = used[tensor.layout], anew.memory(tensor)
        image, is_view = _image(pieces.pop(tensor.id, ()), tensor.bytes, place, memory)
        if is_view and tensor.id in stay:
            read_at_random(image)
        infos = old.planes(tensor.format, tensor.shape)
        own = {info.name: plane_view(image, info) for info in infos}
        planes[tensor.id] = anew.planes(tensor, own, old)
        done, mapped = done + tensor.bytes, mapped + is_view * tensor.bytes
        if progress:
            progress("weights", done, nbytes)
    relaid_bytes = sum(wanted[id].bytes for id in relay)
    report = LoadReport(nbytes, mapped, relaid_bytes, time.monotonic() - start)
    return WeightStore(artifact, formats, used, planes, report, relay)


def _layout(
    artifact: Artifact, tensor: TensorObject, formats: Mapping[str, FormatSpec],
    layouts: Mapping[str, LayoutSpec],
) -> StorageLayout:
    """The layout of a tensor, after checking that the tensor is one that it holds."""
    where = artifact.place(tensor)
    spec = _known(layouts, tensor.layout, where)
    if _known(formats, tensor.format, where).name not in spec.formats:
        raise malformed(where, f"layout {spec.name} does not hold format {tensor.format}")
    layout: StorageLayout = spec.layout.load()()
    try:
        nbytes = layout.nbytes(tensor.format, tensor.shape)
    except ArtifactError as error:  # layouts do not know of which object they are asked
        raise malformed(where, f"{error.what}: {error.why}") from error
    if nbytes != tensor.bytes or tensor.offset % spec.alignment:
        placed = f"{tensor.bytes} bytes at offset {tensor.offset}"
        raise malformed(where, f"{placed}; it needs {nbytes} at a multiple of {spec.alignment}")
    return layout


def _known(specs: Mapping[str, S], name: str, where: str) -> S:
    if name not in specs:
        why, fix = f"known are {', '.join(sorted(specs))}", "install the plugin that registers it"
        raise ArtifactError(f"unknown {name}", where=where, why=why, fix=fix)
    return specs[name]


def _image(
    pieces: Sequence[memoryview], nbytes: int, device: torch.device, image: Tensor | None
) -> tuple[Tensor, bool]:
    """The bytes of an object on a device, and whether they are a view of the mapped file.

    :param image: memory for them, unless they are that.
    """
    with warnings.catch_warnings():
        # The maps are read-only on purpose, which torch has no tensors for: nothing writes to them.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        sources = [torch.frombuffer(piece, dtype=torch.uint8) for piece in pieces]
        if device.type == "cpu" and len(sources) > 1 and (whole := joined(sources)) is not None:
            sources = [whole]
    if device.type == "cpu" and len(sources) == 1 and sources[0].data_ptr() % _CACHE_LINE == 0:
        return sources[0], True
    if image is None:
        image = torch.empty(nbytes, dtype=torch.uint8, device=device)
    end = 0
    for source in sources:
        begin, end = end, end + len(source)
        image[begin:end].copy_(source)
    return image, False
