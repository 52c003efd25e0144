"""Snapshots in files that outlive the process.

A file is its pages as they are, so that they can be mapped; then the tokens (int32, little endian);
then a catalogue in JSON and a footer. The catalogue comes last because it has the checksums, and a
file that was cut short has none. A container for tensors would bring a dependency instead of the
checksums: to anybody but the store, a page is bytes.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from ast import literal_eval
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from attrs import asdict, frozen

from ninfer_core.api import ArtifactError
from ninfer_core.state.memory import PageMemory, Snapshot
from ninfer_core.state.prefix_tree import Tokens
from ninfer_core.state.store import StateStore

Scope = str | bytes | int | None | tuple["Scope", ...]
"""What tells computations of equal tokens apart, in literals that ``repr`` writes for good."""

_log = logging.getLogger(__name__)
_NOT_USABLE = ArtifactError, OSError, RecursionError, SyntaxError, TypeError, ValueError
"""What reading a file may end with, whatever is in it."""
_FOOTER = struct.Struct("<II12s")  # length and checksum of the catalogue, magic number
_MAGIC = b"NINFERSTATE2"
_MOST_CATALOGUE = 1024
"""Bytes of a catalogue and footer, without the scope."""


def is_scope(value: object) -> bool:
    """Whether this is such a literal."""
    if isinstance(value, tuple):
        return all(map(is_scope, value))
    return value is None or isinstance(value, str | bytes | int)


@frozen
class Catalogue:
    """What a file holds; ``num_rows`` pages, the last ``num_image`` of them of the image, and what
    a `Snapshot` says of itself."""

    identity: str
    scope: str
    kind: str
    num_tokens: int
    num_rows: int
    num_image: int
    replay: int
    next_token: int | None
    rows_crc: int
    tokens_crc: int


@frozen(eq=False)
class StoredState:
    """A file and the pages of the tier's room that it takes."""

    path: Path
    num_pages: int
    num_tokens: int
    next_token: int | None


class DiskTier:
    """A bounded folder of state files, each whole by itself.

    :param folder: of all models; the files of one identity are in a folder of it.
    :param max_bytes: of the files of this identity.
    :param identity: digests of all that makes states what they are: model, formats, template,
        tokenizer. The geometry of the store is added.
    """

    name = "disk"

    def __init__(
        self, folder: Path, max_bytes: int, *, identity: bytes, store: StateStore
    ) -> None:
        self._identity = sha256(identity + store.geometry.encode()).hexdigest()
        self._page_bytes, self._capacity = store.page_bytes, max_bytes // store.page_bytes
        self.kept: set[StoredState] = set()
        self._folder = folder / self._identity[:32]
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def num_free(self) -> int:
        """Room in pages; negative if the files take more than is allowed now."""
        return self._capacity - self.num_freed(self.kept)

    def num_held(self, files: Iterable[StoredState]) -> int:
        return sum(each.num_pages for each in files)

    num_freed = num_held  # no two files share any

    def scan(self) -> Iterator[tuple[StoredState, Scope, str, Tokens]]:
        """Files of earlier processes with scope, kind and tokens, the longest unused first; what is
        damaged or half written is deleted."""
        for path in self._folder.glob("*.part"):
            self._delete(path)
        for path in sorted(self._folder.glob("*.state"), key=_last_use):
            try:
                catalogue, tokens = self._read(path)
                _check(path == self._path(catalogue.scope, tokens), path, "the name")
                found = literal_eval(catalogue.scope), catalogue.kind, tokens
                stored = self._add(path, len(tokens), catalogue.next_token)
            except _NOT_USABLE as error:
                _log.warning("a stored state is not usable, and is deleted: %s", error)
                self._delete(path)
            else:
                yield stored, *found

    def num_pages_to_save(self, snapshot: Snapshot, scope: Scope) -> int:
        """Room that `save` needs."""
        rest = 4 * snapshot.num_tokens + len(repr(scope)) + _MOST_CATALOGUE
        return len(snapshot.held) + -(-rest // self._page_bytes)

    def save(self, snapshot: Snapshot, scope: Scope, kind: str, tokens: Tokens) -> StoredState:
        """Write a file that appears when it is whole; raises `OSError` if it cannot be written."""
        path = self._path(repr(scope), tokens)
        part = path.with_suffix(f".{os.getpid()}.part")
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have cleared all caches
        snapshot.memory.settle()
        try:
            with part.open("wb") as file:
                rows_crc = 0
                for page in snapshot.held.tolist():
                    row = snapshot.memory.rows[page].cpu().numpy().data
                    rows_crc = crc32(row, rows_crc)
                    file.write(row)
                catalogue = json.dumps(asdict(Catalogue(
                    identity=self._identity, scope=repr(scope), kind=kind,
                    num_tokens=snapshot.num_tokens, num_rows=len(snapshot.held),
                    num_image=len(snapshot.image), replay=snapshot.replay,
                    next_token=snapshot.next_token, rows_crc=rows_crc,
                    tokens_crc=crc32(tokens.data),
                ))).encode()
                file.write(tokens.tobytes() + catalogue)
                file.write(_FOOTER.pack(len(catalogue), crc32(catalogue), _MAGIC))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return self._add(path, len(tokens), snapshot.next_token)

    def load(self, stored: StoredState) -> Snapshot:
        """The snapshot in a mapped file; raises `ArtifactError` if it is damaged or gone."""
        path = stored.path
        try:
            catalogue, _ = self._read(path)
            shape = catalogue.num_rows, self._page_bytes
            rows = np.memmap(path, np.uint8, "c", shape=shape)
            _check(crc32(rows.data) == catalogue.rows_crc, path, "a page")
            os.utime(path)
        except OSError as error:
            raise ArtifactError("a stored state is lost", where=str(path)) from error
        memory = PageMemory(torch.from_numpy(rows), "disk")
        pages = range(catalogue.num_rows)
        return memory.keep(
            catalogue.num_tokens, pages, catalogue.num_image, catalogue.replay,
            catalogue.next_token,
        )

    def drop(self, stored: StoredState) -> None:
        """Delete a file."""
        self.kept.remove(stored)
        self._delete(stored.path)

    def _path(self, scope: str, tokens: Tokens) -> Path:
        """The one place for a file of these tokens; what it is called decides nothing."""
        key = sha256(repr((scope, len(tokens))).encode() + tokens.tobytes()).hexdigest()
        return self._folder / f"{key[:32]}.state"

    def _read(self, path: Path) -> tuple[Catalogue, Tokens]:
        """Catalogue and tokens of a file that is this identity's, and as long as it should be."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            _check(size > _FOOTER.size, path, "the length")
            file.seek(size - _FOOTER.size)
            length, crc, magic = _FOOTER.unpack(file.read())
            _check(magic == _MAGIC and length < size, path, "the footer")
            file.seek(end := size - _FOOTER.size - length)
            text = file.read(length)
            _check(crc32(text) == crc, path, "the catalogue")
            catalogue = Catalogue(**json.loads(text))
            _check(catalogue.identity == self._identity, path, "the identity")
            begin = catalogue.num_rows * self._page_bytes
            _check(begin + 4 * catalogue.num_tokens == end, path, "the length")
            file.seek(begin)
            tokens = np.frombuffer(file.read(end - begin), np.int32)
            _check(crc32(tokens.data) == catalogue.tokens_crc, path, "a token")
        return catalogue, tokens

    def _add(self, path: Path, num_tokens: int, next_token: int | None) -> StoredState:
        num_pages = -(-path.stat().st_size // self._page_bytes)
        stored = StoredState(path, num_pages, num_tokens, next_token)
        self.kept.add(stored)
        return stored

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a stored state cannot be deleted: %s", error)


def _check(condition: bool, path: Path, what: str) -> None:
    if not condition:
        raise ArtifactError("a stored state is damaged", where=str(path), why=f"{what} is wrong")


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process has deleted it
        return 0.0
