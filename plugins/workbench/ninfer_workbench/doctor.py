"""``ninfer doctor``: whether a model could run here, without loading it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping

from ninfer_core.api import ArtifactError, ParameterSpec
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.config import resolve
from ninfer_core.config.coverage import weight_problems
from ninfer_core.config.model import resolve_model
from ninfer_workbench.kernels import print_kernels

Row = tuple[str, str, str]


def run(arguments: Namespace) -> int:
    """Check claim, weights, files and kernels; exit code 1 if the model could not run. Of a source
    checkpoint, the headers of its files are checked, and what a conversion would write."""
    with Console(arguments.log_level) as console:
        config, report, artifact = prepare_catalogue(arguments, console.progress)
    model = resolve_model(config, report, artifact)
    parameters, claim = model.parameters, model.pack
    rejected = (("not", name, reason) for name, reason in claim.rejected)
    unbound = list(weight_problems(artifact, parameters))
    bound = f"{len(parameters) - len(unbound)} of {len(parameters)} parameters are bound"
    problems = [*unbound, *file_problems(artifact, parameters)]
    print(table(("claim", claim.spec.name, claim.reason), *rejected, *checkpoint_rows(artifact),
                ("weights", bound, ""), files_row(artifact), *problems,
                *unused_tensors(artifact, parameters)))
    if problems:
        return 1
    print_kernels(resolve(config, report, absent=True, artifact=artifact))
    return 0


def file_problems(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> Iterator[Row]:
    """The first file that holds weights and cannot be read; an outline has no files."""
    try:
        for tensor in used_tensors(artifact, parameters).values() if artifact.shards.maps else ():
            artifact.shards.read(tensor.offset, tensor.bytes)
    except ArtifactError as error:
        yield "file", error.where, error.why


def checkpoint_rows(artifact: Artifact) -> Iterator[Row]:
    """What is in the source checkpoint that an artifact would be converted from."""
    inventory = artifact.provenance.get("checkpoint")
    if inventory is None:
        return
    stored, ignored = inventory["stored"], inventory["ignored"]
    total = sum(tensors for tensors, _ in stored.values())
    tensors, parameters = inventory["whole"]
    yield ("checkpoint", f"{parameters:,} parameters",
           f"in {tensors:,} tensors, with scales {total:,}")
    for kind, (tensors, elements) in stored.items():
        yield f"- {kind}", f"{elements:,} elements", f"in {tensors:,} tensors"
    for why, (tensors, parameters) in {"": inventory["used"], **ignored}.items():
        kind, reason = ("ignored", f": {why}") if why else ("used", "")
        yield f"- {kind}", f"{parameters:,} parameters", f"in {tensors:,} tensors{reason}"


def files_row(artifact: Artifact) -> Row:
    """How many files were opened."""
    opened, files = len(artifact.shards.maps), len(artifact.shards.files)
    if not opened:
        return "files", "none", "the model is an outline: of a card, or of a source checkpoint"
    return "files", f"{opened} of {files} are in use", ""


def unused_tensors(artifact: Artifact, parameters: Iterable[ParameterSpec]) -> Iterator[Row]:
    """Stored tensors that no parameter of the pack reads; they may belong to another component."""
    used = used_tensors(artifact, parameters)
    for id_, stored in artifact.objects.items():
        if stored.kind == "tensor" and id_ not in used:
            yield "unused", id_, f"{stored.bytes:,} B"


def used_tensors(
    artifact: Artifact, parameters: Iterable[ParameterSpec]
) -> Mapping[str, TensorObject]:
    """Stored tensors that parameters are bound to, by id."""
    names = {spec.tied_to or spec.name for spec in parameters} & artifact.bindings.keys()
    return {tensor.id: tensor for name in names for tensor, _, _ in artifact.parts(name)}
