"""Several files that appear together and complete, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from ninfer_core.api import ArtifactError


@contextmanager
def published(finals: Sequence[Path]) -> Iterator[Sequence[BinaryIO]]:
    """Open a temporary file for each of ``finals``; leaving without an error publishes them.

    They are forced to disk, then linked to their final names, the first one last: whoever finds it
    finds all. Nothing is overwritten, and after an error nothing is left.

    :raises ArtifactError: if a name is taken or the system cannot write.
    """
    token, linked = uuid4().hex, list[Path]()
    temporary = [final.with_name(f".{final.name}.{token}") for final in finals]
    try:
        for final in finals:
            refuse_taken(final)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("xb")) for path in temporary]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for path, final in reversed([*zip(temporary, finals, strict=True)]):
            os.link(path, final)  # unlike a rename, it fails where the name is taken
            linked.append(final)
    except BaseException as error:
        for final in linked:
            final.unlink()
        if isinstance(error, OSError):
            raise ArtifactError(
                "the set cannot be written", where=str(finals[0]), why=str(error),
                fix="see that the directory is writable and has room, and that no name is taken",
            ) from error
        raise
    finally:
        for path in temporary:
            with suppress(OSError):  # a path that cannot be written cannot be removed either
                path.unlink()


def refuse_taken(path: Path) -> None:
    """Raise `ArtifactError` if something has this name."""
    if os.path.lexists(path):
        raise ArtifactError(
            "a file is in the way", where=str(path), why="files are never overwritten",
            fix="remove it and all parts of its set, or write to another name",
        )
