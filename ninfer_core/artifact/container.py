"""A `.ninfer` set on disk: an entry file with the catalogue, and the parts beside it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from attrs import frozen

from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_core.artifact.catalogue import (
    Binding,
    Catalogue,
    Component,
    File,
    ResourceObject,
    TensorObject,
    Use,
)
from ninfer_core.artifact.schema import malformed, parse

HEADER = struct.Struct("<8sQ16s")
"""Magic; size of the JSON (of the entry) or index (of a part); id of the set."""
ENTRY_MAGIC, PART_MAGIC = b"NINFER\0\3", b"NINPRT\0\3"
PAGE = 4096


@frozen(eq=False)
class Shards:
    """The payload of a set: the payloads of its files, one after the other.

    A part is opened, verified and mapped when something in it is read; until then it may be absent.
    """

    entry: Path
    set_id: bytes
    payload_start: int
    files: tuple[File, ...]
    maps: dict[int, mmap.mmap]

    def read(self, offset: int, length: int) -> list[memoryview]:
        """Read-only views of ``length`` bytes, cut where files end; nothing is copied."""
        views, before = [], 0
        for index, file in enumerate(self.files):
            begin = max(offset - before, 0)
            end = min(offset + length - before, file.payload_bytes)
            if begin < end:
                start = PAGE if index else self.payload_start
                views.append(memoryview(self._map(index))[start + begin : start + end])
            before += file.payload_bytes
        return views

    def _map(self, index: int) -> mmap.mmap:
        if index not in self.maps:
            if index == 0:
                raise ArtifactError(
                    "a model has no weights here", where=str(self.entry),
                    why="it is an outline, known by its catalogue alone",
                )
            path = self.entry.with_name(self.files[index].path)
            mapped = _map_file(path)
            if mapped[: HEADER.size] != HEADER.pack(PART_MAGIC, index, self.set_id):
                raise malformed(path, f"it is not part {index} of {self.entry.name}")
            _require_size(path, mapped, PAGE + self.files[index].payload_bytes)
            self.maps[index] = mapped
        return self.maps[index]


@frozen(eq=False)
class Artifact:
    """An opened set: all of it but the payload.

    :ivar objects: by id, in the order of their offsets.
    :ivar bindings: by logical parameter name.
    """

    path: Path
    artifact_id: UUID
    components: Mapping[str, Component]
    objects: Mapping[str, TensorObject | ResourceObject]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    metadata: Mapping[str, Any]
    provenance: Mapping[str, Any]
    shards: Shards

    @property
    def nbytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(each.bytes for each in self.objects.values() if each.kind == "tensor")

    def description(self) -> ModelDescription:
        """What packs claim the model by."""
        config = self.components["text"].config
        names = config.get("architectures", [])
        if type(names) is not list or not all(type(name) is str for name in names):
            raise malformed(self.path, f"config.architectures of component 'text' is {names!r}")
        configs = {name: each.config for name, each in self.components.items()}
        return ModelDescription("artifact", tuple(names), config, configs)

    def parts(self, name: str) -> list[tuple[TensorObject, int, int]]:
        """Where the elements of a parameter are, in order: tensors, each with an element range."""
        if name not in self.bindings:
            why, fix = f"it has {len(self.bindings)} others", "convert it again for the pack in use"
            raise ArtifactError(f"no parameter {name!r}", where=str(self.path), why=why, fix=fix)
        found = []
        for object_id, span in self.bindings[name].spans():
            tensor = self.objects[object_id]
            assert isinstance(tensor, TensorObject)  # the catalogue is checked
            begin, end = span or (0, tensor.num_elements)
            found.append((tensor, begin, end))
        return found

    def place(self, stored: TensorObject) -> str:
        """Where an object is, for errors."""
        return f"{self.path}: object {stored.id}"

    def resources(self, component: str = "text") -> dict[str, bytes]:
        """The files of a component by role; none if the set lacks the component."""
        places = self.components[component].resources if component in self.components else {}
        stored = {role: self.objects[object_id] for role, object_id in places.items()}
        read = self.shards.read
        return {role: b"".join(read(each.offset, each.bytes)) for role, each in stored.items()}

    def resource(self, role: str, component: str = "text") -> bytes:
        """A file of a component, e.g. ``tokenizer.json``; raises `ArtifactError` without it."""
        files = self.resources(component)
        if role not in files:
            raise ArtifactError(
                f"no {role} in component {component!r}", where=str(self.path),
                why=f"it has {[*files]}", fix="convert the model again from a source that has it",
            )
        return files[role]


def open_artifact(path: str | Path) -> Artifact:
    """Read header and catalogue of a set, and verify all that can be verified without its parts.

    :raises ArtifactError: for whatever is not a complete, consistent v3 entry file.
    """
    path = Path(path)
    mapped = _map_file(path)
    magic, json_bytes, set_id = HEADER.unpack(mapped[: HEADER.size].ljust(HEADER.size, b"\0"))
    if magic != ENTRY_MAGIC:
        raise malformed(path, f"it begins with {magic!r}, a version 3 entry with {ENTRY_MAGIC!r}")
    if json_bytes > len(mapped) - HEADER.size:
        raise malformed(path, f"its {len(mapped)} bytes end before its catalogue of {json_bytes}")
    root: Catalogue = parse(mapped[HEADER.size : HEADER.size + json_bytes], Catalogue, path)
    start = align_up(HEADER.size + json_bytes, PAGE)
    _require_size(path, mapped, start + root.files[0].payload_bytes)
    if path.name in {file.path for file in root.files}:
        raise malformed(path, "the entry is listed as a part of its own set")
    return artifact_of(root, path, set_id, start, {0: mapped})


def artifact_of(
    root: Catalogue, path: Path, set_id: bytes, payload_start: int, maps: dict[int, mmap.mmap]
) -> Artifact:
    """A set of a catalogue; without ``maps`` it has no payload."""
    return Artifact(
        path, UUID(bytes=set_id), root.components, {each.id: each for each in root.objects},
        root.bindings, root.uses, root.metadata, root.provenance,
        Shards(path, set_id, payload_start, root.files, maps),
    )


def align_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise ArtifactError(
            "a file of the model cannot be read", where=str(path), why=str(error),
            fix="check the path; all files of a set lie in one directory under their own names",
        ) from error


def _require_size(path: Path, mapped: mmap.mmap, size: int) -> None:
    if len(mapped) != size:
        raise malformed(path, f"it has {len(mapped)} bytes instead of {size}")
