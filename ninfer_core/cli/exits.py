"""How a command ends: what errors and signals look like from outside."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from ninfer_core.api import NInferError
from ninfer_core.cli.console import open_missing_streams

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
TERMINATED = 143
"""Exit code after SIGTERM."""


def exit_code(command: Callable[[], int]) -> int:
    """Run a command; its own exit code, 1 with a message for an error, 130 after Ctrl-C.

    SIGTERM unwinds the stack as Ctrl-C does, so that no temporary file stays.
    """
    open_missing_streams()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    if logging.getLogger("ninfer_core").isEnabledFor(logging.DEBUG):
        traceback.print_exc()
    if isinstance(error, OSError):
        fix = "check the path, its permissions and the space left"
        error = NInferError("the system refuses to read or write", why=str(error), fix=fix)
    text = str(error)
    if not isinstance(error, NInferError):
        text = f"internal: {error!r}\n  to fix: report it with the output of --log-level debug"
    print(f"error: {text}", file=sys.stderr)
    return 1


def _reader_gone() -> int:
    """The reader of stdout has left: keep the interpreter from failing at its last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
