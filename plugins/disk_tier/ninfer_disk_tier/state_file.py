"""One state in one file.

A file is its pages as they are, so that they can be mapped; then the tokens (int32, little endian);
then a catalogue in JSON and a footer. The catalogue comes last because it has the checksums, and a
file that was cut short has none. A container for tensors would bring a dependency instead of the
checksums: to anybody but the store, a page is bytes.
"""

from __future__ import annotations

import json
import os
import struct
from ast import literal_eval
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
from attrs import asdict, field, frozen
from attrs.validators import ge, instance_of, optional
from numpy.typing import NDArray

from ninfer_core.api import ArtifactError, Scope, is_scope
from ninfer_core.state.memory import Snapshot

Tokens = NDArray[np.int32]
MOST_CATALOGUE = 1024
"""Bytes of a catalogue and footer, without the scope."""

_FOOTER = struct.Struct("<II12s")  # length and checksum of the catalogue, magic number
_MAGIC = b"NINFERSTATE2"
_MALFORMED = MemoryError, RecursionError, SyntaxError, TypeError, ValueError
"""What parsers may end with, whatever is in a file."""


def _count(least: int = 0) -> Any:
    return field(validator=[instance_of(int), ge(least)])


@frozen(kw_only=True)
class Catalogue:
    """What a file holds; ``num_rows`` pages, the last ``num_image`` of them of the image, and what
    a `Snapshot` says of itself."""

    identity: str = field(validator=instance_of(str))
    scope: str = field(validator=instance_of(str))
    kind: str = field(validator=instance_of(str))
    num_tokens: int = _count(1)
    num_rows: int = _count()
    num_image: int = _count()
    replay: int = _count()
    next_token: int | None = field(validator=optional(instance_of(int)))
    rows_crc: int = _count()
    tokens_crc: int = _count()

    def __attrs_post_init__(self) -> None:
        if self.num_image > self.num_rows:
            raise ValueError(f"{self.num_image} of {self.num_rows} pages are of the image")


def write_state(
    file: BinaryIO, snapshot: Snapshot, tokens: Tokens, *, identity: str, scope: Scope, kind: str
) -> None:
    """Write a state of these tokens; raises `OSError` if it cannot be written."""
    rows_crc = 0
    snapshot.memory.settle()
    for page in snapshot.held.tolist():
        row = snapshot.memory.rows[page].cpu().numpy().data
        rows_crc = crc32(row, rows_crc)
        file.write(row)
    catalogue = json.dumps(asdict(Catalogue(
        identity=identity, scope=repr(scope), kind=kind, num_tokens=snapshot.num_tokens,
        num_rows=len(snapshot.held), num_image=len(snapshot.image), replay=snapshot.replay,
        next_token=snapshot.next_token, rows_crc=rows_crc, tokens_crc=crc32(tokens.data),
    ))).encode()
    file.write(tokens.tobytes() + catalogue)
    file.write(_FOOTER.pack(len(catalogue), crc32(catalogue), _MAGIC))


def read_state(path: Path, identity: str, page_bytes: int) -> tuple[Catalogue, Scope, Tokens]:
    """Catalogue, scope and tokens of a file that is this identity's, and as long as it should be.
    Its pages are not looked at.

    :raises ArtifactError: if it is damaged, or no file. :raises OSError: if it cannot be read.
    """
    check(S_ISREG(path.stat().st_mode), path, "the kind of file")  # to open a pipe is to wait
    with path.open("rb") as file:
        try:
            return _read(file, path, identity, page_bytes)
        except _MALFORMED as error:
            raise _damaged(path, f"the catalogue is wrong: {error}") from error


def map_rows(path: Path, catalogue: Catalogue, page_bytes: int) -> NDArray[np.uint8]:
    """The pages ``[num_rows, page_bytes]``, mapped; errors as of `read_state`."""
    shape = catalogue.num_rows, page_bytes
    try:
        rows: NDArray[np.uint8] = np.memmap(path, np.uint8, "c", shape=shape)
    except ValueError as error:  # it was cut short meanwhile
        raise _damaged(path, str(error)) from error
    check(crc32(rows.data) == catalogue.rows_crc, path, "a page")
    return rows


def check(condition: bool, path: Path, what: str) -> None:
    """Raise `ArtifactError` if something is wrong with a file."""
    if not condition:
        raise _damaged(path, f"{what} is wrong")


def _read(
    file: BinaryIO, path: Path, identity: str, page_bytes: int
) -> tuple[Catalogue, Scope, Tokens]:
    size = file.seek(0, os.SEEK_END)
    check(size > _FOOTER.size, path, "the length")
    file.seek(size - _FOOTER.size)
    length, crc, magic = _FOOTER.unpack(file.read())
    check(magic == _MAGIC and length < size, path, "the footer")
    file.seek(end := size - _FOOTER.size - length)
    text = file.read(length)
    check(crc32(text) == crc, path, "the catalogue")
    catalogue = Catalogue(**json.loads(text))
    check(catalogue.identity == identity, path, "the identity")
    begin = catalogue.num_rows * page_bytes
    check(begin + 4 * catalogue.num_tokens == end, path, "the length")
    file.seek(begin)
    tokens = np.frombuffer(file.read(end - begin), np.int32)
    check(crc32(tokens.data) == catalogue.tokens_crc, path, "a token")
    scope = literal_eval(catalogue.scope)
    check(is_scope(scope), path, "the scope")
    return catalogue, scope, tokens


def _damaged(path: Path, why: str) -> ArtifactError:
    return ArtifactError("a stored state is damaged", where=str(path), why=why)
