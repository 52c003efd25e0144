"""Write a table in so many more bytes of memory than the process has; see ``test_ranges.py``.

A process of its own: what a long one has freed before would serve it as memory, too.

Usage: ``range_memory.py CHECKPOINT FORMAT rows|whole BYTES OUT``, which says ``written`` or
``no memory``.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
from attrs import evolve

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_checkpoints.importing import Tensors, import_parameter
from ninfer_checkpoints.parameters import Origin, Parameter
from ninfer_convert import objects
from ninfer_convert.source import open_source
from ninfer_convert.storage import plan_objects
from ninfer_core.api import ImportPlan, ParameterSpec, StorageChoice
from ninfer_core.plugin_host import PluginSelection, load_plugins


def planned(checkpoint: Path, format: str, by_rows: bool):
    source = open_source(checkpoint)
    origins = tuple(Origin(name) for name in sorted(source.tensors))
    table = Parameter(ParameterSpec("table", (8 * 16384, 128), "table"), origins, joined=0)
    member = import_parameter(table, Tensors(source.tensors, ()))
    members = (member if by_rows else evolve(member, rows=None),)
    plugins = load_plugins(PluginSelection(modules=("ninfer_convert.plugin",), names=()))
    choice = StorageChoice("*", format, "")
    (stored,) = plan_objects(ImportPlan({}, members, {}, {}, (choice,)), plugins.registry)
    return stored


def limit(nbytes: int) -> None:
    """Let the process take so much more than it has, files that it maps aside."""
    status = Path("/proc/self/status").read_text()
    held = next(line.split()[1] for line in status.splitlines() if line.startswith("VmData"))
    most = 1024 * int(held) + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def write(stored, path: Path) -> None:
    with ArtifactWriter(path, components={"text": {"config": {}}}) as writer:
        writer.add_tensor("table", stored.shape, stored.format.name, stored.layout.name,
                          stored.pieces, nbytes=stored.nbytes)
        writer.bind("table", "table")


checkpoint, format, kind, nbytes, path = sys.argv[1:]
torch.set_num_threads(1)  # stacks of threads are memory, too
objects.RANGE_ELEMENTS = 1 << 18
stored = planned(Path(checkpoint), format, kind == "rows")
limit(int(nbytes))
try:
    write(stored, Path(path))
except RuntimeError as error:
    assert "allocate memory" in str(error), error
    print("no memory")
else:
    print("written")
