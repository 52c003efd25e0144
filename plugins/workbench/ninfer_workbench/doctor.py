"""``ninfer doctor``: whether a model could run here, without loading it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator

from ninfer_core.api import ParameterSpec
from ninfer_core.artifact.container import Artifact
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare
from ninfer_core.config import resolve
from ninfer_core.config.coverage import weight_problems
from ninfer_core.config.model import resolve_model
from ninfer_workbench.kernels import print_kernels

Row = tuple[str, str, str]


def run(arguments: Namespace) -> int:
    """Check claim, weights and kernels; exit code 1 if the model could not run."""
    with Console(arguments.log_level) as console:
        config, report = prepare(arguments, console.progress)
    model = resolve_model(config, report)
    artifact, parameters, claim = model.artifact, model.parameters, model.pack
    rejected = (("not", name, reason) for name, reason in claim.rejected)
    problems = list(weight_problems(artifact, parameters))
    bound = f"{len(parameters) - len(problems)} of {len(parameters)} parameters are bound"
    print(table(("claim", claim.spec.name, claim.reason), *rejected, ("weights", bound, ""),
                *problems, *unused_tensors(artifact, parameters)))
    if problems:
        return 1
    print_kernels(resolve(config, report, absent=True))
    return 0


def unused_tensors(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> Iterator[Row]:
    """Stored tensors that no parameter of the pack reads; they may belong to another component."""
    names = {spec.tied_to or spec.name for spec in parameters} & artifact.bindings.keys()
    used = {tensor.id for name in names for tensor, _, _ in artifact.parts(name)}
    for id_, stored in artifact.objects.items():
        if stored.kind == "tensor" and id_ not in used:
            yield "unused", id_, f"{stored.bytes:,} B"
