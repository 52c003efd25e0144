"""Runs a plugin's code at start-up so that nothing it does can end the start."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from ninfer_core.api import NInferError, PluginError
from ninfer_core.plugin_host.records import PluginRecord

T = TypeVar("T")
_one_at_a_time = threading.RLock()


def broken(record: PluginRecord, why: str) -> PluginError:
    """The error of a plugin that cannot be used."""
    return PluginError(
        f"plugin {record.name!r} is broken", where=str(record.provenance), why=why,
        fix=f"update it, uninstall it, or leave it out: --no-plugin {record.name}",
    )


def cause_of(error: BaseException) -> str:
    """The kind and text of what a plugin raised, whatever it raised."""
    try:
        text = f"{error.what}: {error.why}" if isinstance(error, NInferError) else str(error)
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"


def guarded(record: PluginRecord, action: str, call: Callable[[], T]) -> T:
    """``call()``; whatever it raises but a keyboard interrupt becomes a `PluginError`, and what it
    prints goes to stderr."""
    try:
        with no_heavy_imports(), redirect_stdout(sys.stderr):
            return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise broken(record, f"{action}: {cause_of(error)}") from error


@contextmanager
def no_heavy_imports() -> Iterator[None]:
    """Refuse imports of torch and triton by this thread, even if the process already has them.

    The statement itself is watched, since a loaded module is not searched for again. The error is
    raised at the end, too: who shrugs the refusal off would get torch in other runs.
    """
    refused: list[str] = []
    thread = threading.get_ident()

    def watch(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        heavy = level == 0 and name.partition(".")[0] in ("torch", "triton")
        if heavy and threading.get_ident() == thread:
            refused.append(name)
            raise PluginError(f"{name} is not for start-up")
        return original(name, globals, locals, fromlist, level)

    with _one_at_a_time:
        original, builtins.__import__ = builtins.__import__, watch
        try:
            yield
        finally:
            builtins.__import__ = original
            if refused:
                why = "start-up may not; name heavy code by reference"
                raise PluginError(f"it imports {refused[0]}", why=why)
