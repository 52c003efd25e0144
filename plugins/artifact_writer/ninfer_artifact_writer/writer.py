"""Writes `.ninfer` sets: everything is declared first, then streamed and published."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from torch import Tensor

from ninfer_artifact_writer.publish import published, refuse_taken
from ninfer_core.api import ArtifactError, Progress
from ninfer_core.artifact.catalogue import Catalogue, Part
from ninfer_core.artifact.container import (
    ENTRY_MAGIC,
    HEADER,
    PAGE,
    PART_MAGIC,
    Artifact,
    align_up,
    artifact_of,
)
from ninfer_core.artifact.schema import parse

MAX_FILE_BYTES = 32_000_000_000
Piece = tuple[int, Tensor]
"""Where in an image some of its bytes begin, and they, uint8 ``[n]``."""


class Outline:
    """Collects the content of a set: everything but the bytes of tensors.

    :param path: of the entry file; parts are named after it.
    :param components: as in the catalogue, by id; `add_resource` adds their resources.
    :param max_file_bytes: a larger set is split into an entry and parts of at most this size.
    """

    def __init__(
        self, path: str | Path, *, components: Mapping[str, Mapping[str, Any]],
        metadata: Mapping[str, Any] | None = None, max_file_bytes: int = MAX_FILE_BYTES,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.max_file_bytes = Path(path), max_file_bytes
        self._root: dict[str, Any] = {
            "components": {name: {**each, "resources": {}} for name, each in components.items()},
            "objects": [], "bindings": {}, "uses": [],
            "metadata": metadata or {}, "provenance": provenance or {},
        }
        self._images: list[Callable[[], Iterable[tuple[int, memoryview]]]] = []
        self._end = 0

    def add_tensor(
        self, object_id: str, shape: Sequence[int], format: str, layout: str,
        image: Tensor | Callable[[], Iterable[Piece]], *, nbytes: int | None = None,
        alignment: int = 256,
    ) -> None:
        """Declare a tensor.

        :param image: uint8 ``[nbytes]`` as `StorageLayout.pack` makes it, or a function that makes
            it when its turn to be written comes, piece by piece in any order, so that no more than
            a piece has to be held. What is in no piece is zero.
        :param nbytes: size of the image; needed with a function.
        """
        size = image.numel() if isinstance(image, Tensor) else nbytes
        make = (lambda: [(0, image)]) if isinstance(image, Tensor) else image
        tensor = {"kind": "tensor", "shape": [*shape], "format": format, "layout": layout}
        self._add(
            {"id": object_id, **tensor}, size, alignment,
            lambda: ((begin, _bytes(piece)) for begin, piece in make()),
        )

    def add_resource(self, role: str, content: bytes, component: str = "text") -> None:
        """Declare a file of a component."""
        object_id = f"{component}/{role}"
        self._root["components"][component]["resources"][role] = object_id
        resource = {"id": object_id, "kind": "resource", "encoding": "raw_bytes_v1"}
        self._add(resource, len(content), 1, lambda: [(0, memoryview(content))])

    def bind(self, name: str, target: str | Sequence[Part]) -> None:
        """Say where a parameter is: the id of an object, or parts in order."""
        self._root["bindings"][name] = _binding(target)

    def use(
        self, parameter: str, input: str, activation_policy: str | None = None,
        auxiliaries: Mapping[str, str | Sequence[Part]] | None = None,
    ) -> None:
        """Say what the product of a parameter with an input may do with its activations."""
        use: dict[str, Any] = {"parameter": parameter, "input": input}
        if activation_policy is not None:
            use["activation_policy"] = activation_policy
        if auxiliaries is not None:
            use["auxiliaries"] = {role: _binding(each) for role, each in auxiliaries.items()}
        self._root["uses"].append(use)

    def artifact(self) -> Artifact:
        """The set as it would be opened, its payload absent; `ArtifactError` if the declarations
        contradict each other."""
        root: Catalogue = parse(self._catalogue()[0], Catalogue, self.path)
        return artifact_of(root, self.path, bytes(16), PAGE, {})

    def _add(
        self, node: dict[str, Any], size: int | None, alignment: int,
        image: Callable[[], Iterable[tuple[int, memoryview]]],
    ) -> None:
        offset = align_up(self._end, alignment)
        self._root["objects"].append({**node, "offset": offset, "bytes": size})
        self._images.append(image)
        self._end = offset + (size or 0)

    def _catalogue(self) -> tuple[bytes, list[int]]:
        """The JSON with blanks up to the payload, and how much payload each file takes."""
        start = PAGE
        while True:
            sizes = _split(self._end, self.max_file_bytes, start)
            paths = [None, *(f"{self.path.name}.part-{i:04d}" for i in range(1, len(sizes)))]
            files = [{"path": p, "payload_bytes": n} for p, n in zip(paths, sizes, strict=True)]
            raw = json.dumps({**self._root, "files": files}, separators=(",", ":")).encode()
            if HEADER.size + len(raw) <= start:
                return raw.ljust(start - HEADER.size), sizes
            start = align_up(HEADER.size + len(raw), PAGE)


class ArtifactWriter(Outline):
    """Writes what was declared; leaving the context without an error publishes it.

    :raises ArtifactError: if the file exists; on leaving, if the declarations contradict each
        other (before anything is written) or the system cannot write (and nothing is left).
    """

    def __init__(
        self, path: str | Path, *, components: Mapping[str, Mapping[str, Any]],
        metadata: Mapping[str, Any] | None = None, max_file_bytes: int = MAX_FILE_BYTES,
        provenance: Mapping[str, Any] | None = None, progress: Progress | None = None,
    ) -> None:
        refuse_taken(Path(path))
        super().__init__(
            path, components=components, metadata=metadata, max_file_bytes=max_file_bytes,
            provenance=provenance,
        )
        self.progress = progress

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write()

    def _write(self) -> None:
        raw, sizes = self._catalogue()
        root: Catalogue = parse(raw, Catalogue, self.path)
        names = [file.path or self.path.name for file in root.files]
        set_id = uuid4().bytes
        with published([self.path.with_name(name) for name in names]) as files:
            files[0].write(HEADER.pack(ENTRY_MAGIC, len(raw), set_id) + raw)
            for index, part in enumerate(files[1:], start=1):
                part.write(HEADER.pack(PART_MAGIC, index, set_id).ljust(PAGE, b"\0"))
            payload = _Payload(files, sizes)
            for node, image in zip(self._root["objects"], self._images, strict=True):
                self._write_object(payload, node, image())

    def _write_object(
        self, payload: _Payload, node: Mapping[str, Any], pieces: Iterable[tuple[int, memoryview]]
    ) -> None:
        done = 0
        for begin, content in pieces:
            if (end := begin + content.nbytes) > node["bytes"]:
                raise ArtifactError(
                    "an image has another size than was declared", where=f"object {node['id']}",
                    why=f"{end} instead of {node['bytes']} bytes",
                )
            payload.write(node["offset"] + begin, content)
            done += content.nbytes
            self._tell(node["offset"] + min(done, node["bytes"]))
        self._tell(node["offset"] + node["bytes"])

    def _tell(self, done: int) -> None:
        if self.progress:
            self.progress("write", done, self._end)


class _Payload:
    """The payload of a set over its files, in each from where that ends on. What is not written is
    zero."""

    def __init__(self, files: Sequence[BinaryIO], sizes: Sequence[int]) -> None:
        starts = [file.tell() for file in files]
        self._files = [*zip(files, starts, accumulate(sizes, initial=0), sizes, strict=False)]
        for file, start, _, size in self._files:
            file.truncate(start + size)

    def write(self, offset: int, content: memoryview) -> None:
        for file, start, before, size in self._files:
            begin = offset - before
            if inside := content[max(-begin, 0) : max(size - begin, 0)]:
                file.seek(start + max(begin, 0))
                file.write(inside)


def _bytes(image: Tensor) -> memoryview:
    array: Any = image.cpu().contiguous().numpy()
    return memoryview(array).cast("B")


def _binding(target: str | Sequence[Part]) -> dict[str, Any]:
    if isinstance(target, str):
        return {"object": target}
    return {"parts": [{"object": part.object, "range": [*part.range]} for part in target]}


def _split(payload: int, limit: int, start: int) -> list[int]:
    """Payload bytes of each file, when that of the entry begins at ``start``."""
    if start + payload <= limit:
        return [payload]
    first, other = ((limit - before) // PAGE * PAGE for before in (start, PAGE))
    if first <= 0 or other <= 0:
        raise ArtifactError(
            "the set cannot be split", why=f"files of {limit} bytes have no room for payload",
            fix="raise max_file_bytes",
        )
    full, last = divmod(payload - first, other)
    return [first, *[other] * full, *[last] * (last > 0)]
