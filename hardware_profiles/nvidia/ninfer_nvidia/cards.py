"""Which NVIDIA cards this machine has, as their driver says it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
"""A folder for each card, with its name in the file ``information``."""

SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
SMI_TIMEOUT_S = 2.0
"""Of a driver that hangs; one that works answers in a few hundredths of a second."""


@cache
def cards() -> tuple[str, ...]:
    """Names of the cards (``NVIDIA H200``), in the driver's order; () without a driver.

    Reads the driver's files, and asks ``nvidia-smi`` only where there are none (WSL). Whatever goes
    wrong, there are no cards.
    """
    return _listed_by_driver() or _listed_by_smi()


def _listed_by_driver() -> tuple[str, ...]:
    names = []
    try:
        for information in sorted(DRIVER.glob("*/information")):
            fields = (line.partition(":") for line in information.read_text().splitlines())
            names += [value.strip() for key, _, value in fields if key == "Model"]
    except (OSError, ValueError):
        return ()
    return tuple(names)


def _listed_by_smi() -> tuple[str, ...]:
    if shutil.which(SMI[0]) is None:
        return ()
    try:
        run = subprocess.run(
            SMI, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    return tuple(filter(None, map(str.strip, run.stdout.splitlines())))
