"""A bounded folder of state files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import torch
from attrs import frozen

from ninfer_core.api import ArtifactError, ConfigError, Scope, StateTierContext
from ninfer_core.state.memory import PageMemory, Snapshot
from ninfer_disk_tier.state_file import (
    MOST_CATALOGUE,
    Tokens,
    check,
    map_rows,
    read_state,
    write_state,
)

_log = logging.getLogger(__name__)


@frozen(eq=False)
class StateFile:
    """A file and the pages of the tier's room that it takes."""

    path: Path
    num_pages: int
    num_tokens: int
    next_token: int | None


class DiskTier:
    """A `StateTier` of files, each whole by itself.

    The location is a folder of all models; the files of one identity are in a folder of it.

    :raises ConfigError: if the folder cannot be made.
    """

    name = "disk"

    def __init__(self, context: StateTierContext) -> None:
        self._identity = sha256(context.identity).hexdigest()
        self._page_bytes = context.page_bytes
        self._capacity = context.max_bytes // context.page_bytes
        self.kept: set[StateFile] = set()
        self._folder = Path(context.location).expanduser() / self._identity[:32]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "states cannot be kept there", where=context.location, why=str(error),
                fix="give --disk-cache a folder that can be written",
            ) from error

    @property
    def num_free(self) -> int:
        return self._capacity - self.num_freed(self.kept)

    def num_held(self, files: Iterable[StateFile]) -> int:
        return sum(each.num_pages for each in files)

    num_freed = num_held  # no two files share any

    def scan(self) -> Iterator[tuple[StateFile, Scope, str, Tokens]]:
        """Files of earlier processes, the longest unused first; what is damaged or half written is
        deleted."""
        for path in self._folder.glob("*.part"):
            self._delete(path)
        for path in sorted(self._folder.glob("*.state"), key=_last_use):
            try:
                catalogue, scope, tokens = read_state(path, self._identity, self._page_bytes)
                check(path == self._path(catalogue.scope, tokens), path, "the name")
                file = self._add(path, len(tokens), catalogue.next_token)
            except (ArtifactError, OSError) as error:
                _log.warning("a stored state is not usable, and is deleted: %s", error)
                self._delete(path)
            else:
                yield file, scope, catalogue.kind, tokens

    def num_pages_to_save(self, snapshot: Snapshot, scope: Scope) -> int:
        rest = 4 * snapshot.num_tokens + len(repr(scope)) + MOST_CATALOGUE
        return len(snapshot.held) + -(-rest // self._page_bytes)

    def save(self, snapshot: Snapshot, scope: Scope, kind: str, tokens: Tokens) -> StateFile:
        """Write a file that appears when it is whole."""
        path = self._path(repr(scope), tokens)
        part = path.with_suffix(f".{os.getpid()}.part")
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have cleared all caches
        try:
            with part.open("wb") as file:
                write_state(
                    file, snapshot, tokens, identity=self._identity, scope=scope, kind=kind)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return self._add(path, len(tokens), snapshot.next_token)

    def load(self, stored: StateFile) -> Snapshot:
        """The snapshot in a mapped file."""
        path = stored.path
        try:
            catalogue, _, _ = read_state(path, self._identity, self._page_bytes)
            rows = map_rows(path, catalogue, self._page_bytes)
            os.utime(path)
        except OSError as error:
            raise ArtifactError(
                "a stored state is lost", where=str(path), why=str(error)) from error
        return PageMemory(torch.from_numpy(rows), self.name).keep(
            catalogue.num_tokens, range(catalogue.num_rows), catalogue.num_image,
            catalogue.replay, catalogue.next_token,
        )

    def drop(self, stored: StateFile) -> None:
        """Delete a file."""
        self.kept.remove(stored)
        self._delete(stored.path)

    def _path(self, scope: str, tokens: Tokens) -> Path:
        """The one place for a file of these tokens; what it is called decides nothing."""
        key = sha256(repr((scope, len(tokens))).encode() + tokens.tobytes()).hexdigest()
        return self._folder / f"{key[:32]}.state"

    def _add(self, path: Path, num_tokens: int, next_token: int | None) -> StateFile:
        num_pages = -(-path.stat().st_size // self._page_bytes)
        file = StateFile(path, num_pages, num_tokens, next_token)
        self.kept.add(file)
        return file

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a stored state cannot be deleted: %s", error)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has deleted it, or it is no file
        return 0.0
