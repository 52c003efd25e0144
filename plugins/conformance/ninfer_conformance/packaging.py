"""L0: the plugin as a package."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from unittest import SkipTest

from ninfer_conformance.subject import Subject
from ninfer_conformance.tolerances import require
from ninfer_core.plugin_host.references import references
from ninfer_core.plugin_host.scan import GROUPS

_IMPORT = (
    "import importlib, sys; sys.path[:] = sys.argv[2:]; importlib.import_module(sys.argv[1]); "
    "print(*{'torch', 'triton'} & sys.modules.keys())"
)


def loads(subject: Subject) -> None:
    """The host accepts it: API version, hooks, specs, no double of a name."""
    record = subject.record
    require(record.state == "active", f"the plugin is {record.state}: {record.reason}")


def imports_without_torch(subject: Subject) -> None:
    """In a fresh process its module imports neither torch nor triton."""
    command = [sys.executable, "-c", _IMPORT, subject.record.module, *sys.path]
    run = subprocess.run(command, capture_output=True, text=True)
    require(run.returncode == 0, f"importing {subject.record.module} fails: {run.stderr[-500:]}")
    require(not run.stdout.strip(), f"{subject.record.module} imports {run.stdout.strip()}")


def references_resolve(subject: Subject) -> None:
    """Every lazy reference of every spec can be loaded."""
    for specs in subject.record.specs.values():
        for reference in references(specs):
            reference.load()


def distribution_is_sound(subject: Subject) -> None:
    """The entry point has a name of its own, that of a spec; files and licence are there."""
    record = subject.record
    if record.group not in GROUPS:
        raise SkipTest("it is not installed")
    entries = [each for group in GROUPS for each in metadata.entry_points(group=group)]
    same = [each.value for each in entries if each.name == record.name]
    require(len(same) == 1, f"{len(same)} entry points are named {record.name!r}: {same}")
    names = {spec.name for kind in ("packs", "profiles") for spec in record.specs.get(kind, ())}
    require(not names or record.name in names, f"entry point {record.name!r} is none of {names}")
    distribution = metadata.distribution(record.distribution)
    missing = [str(file) for file in distribution.files or () if not Path(file.locate()).exists()]
    require(not missing, f"installed files are missing: {missing}")
    licence = {"License-Expression", "License"} & set(distribution.metadata)
    require(licence, "the metadata names no licence; set project.license in pyproject.toml")


CHECKS = (loads, imports_without_torch, references_resolve, distribution_is_sound)
