"""Writes `.ninfer` sets: everything is declared first, then streamed and published."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._images: list[Callable[[], Any]] = []
        self._end = 0

    def add_tensor(
        self, object_id: str, shape: Sequence[int], format: str, layout: str,
        image: Tensor | Callable[[], Tensor], *, nbytes: int | None = None, alignment: int = 256,
    ) -> None:
        """Declare a tensor.

        :param image: uint8 ``[nbytes]`` as `StorageLayout.pack` makes it, or a function that makes
            it when its turn to be written comes, so that only one image is held at a time.
        :param nbytes: size of the image; needed with a function.
        """
        size = image.numel() if isinstance(image, Tensor) else nbytes
        make = (lambda: image) if isinstance(image, Tensor) else image
        tensor = {"kind": "tensor", "shape": [*shape], "format": format, "layout": layout}
        self._add({"id": object_id, **tensor}, size, alignment, lambda: _bytes(make()))

    def add_resource(self, role: str, content: bytes, component: str = "text") -> None:
        """Declare a file of a component."""
        object_id = f"{component}/{role}"
        self._root["components"][component]["resources"][role] = object_id
        resource = {"id": object_id, "kind": "resource", "encoding": "raw_bytes_v1"}
        self._add(resource, len(content), 1, lambda: memoryview(content))

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
        self, node: dict[str, Any], size: int | None, alignment: int, image: Callable[[], Any]
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
            _fill(files, sizes, self._chunks())

    def _chunks(self) -> Iterator[memoryview]:
        """The payload in order, gaps included. A gap, even of no bytes, replaces the image before
        it in the hands of the caller, so that only one is held."""
        done = 0
        for node, image in zip(self._root["objects"], self._images, strict=True):
            yield memoryview(bytes(node["offset"] - done))
            content = image()
            if content.nbytes != node["bytes"]:
                raise ArtifactError(
                    "an image has another size than was declared", where=f"object {node['id']}",
                    why=f"{content.nbytes} instead of {node['bytes']} bytes",
                )
            yield content
            del content
            done = node["offset"] + node["bytes"]
            if self.progress:
                self.progress("write", done, self._end)


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


def _fill(files: Iterable[BinaryIO], sizes: Iterable[int], chunks: Iterable[memoryview]) -> None:
    """Write chunks into files one after the other, as many bytes as each takes."""
    targets = zip(files, sizes, strict=True)
    file, room = next(targets)
    for chunk in chunks:
        while chunk:
            if not room:
                file, room = next(targets)
            written = file.write(chunk[:room])
            chunk, room = chunk[written:], room - written
