"""A process that does not outlive the one that started it. Imports nothing that takes time, so that
this holds before anything else."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the system end this process with the thread that started it, however that ends. What ends
    the server in an orderly way comes through the socket, not by a signal to all processes. The
    second argument of the command line is the parent's id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)  # it was too late for the signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
