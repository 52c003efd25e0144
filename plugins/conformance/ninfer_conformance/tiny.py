"""The model that a pack is tried with, through a real artifact."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from ninfer_conformance.subject import Subject
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_fixtures.tiny import Stack, TinyModel, Values


def random_values(subject: Subject, format: str = "fp32") -> dict[str, Tensor]:
    """As `TinyModel.random_values`."""
    return _model(subject).random_values(format)


def stored(
    subject: Subject, values: Values, format: str = "fp32", stacks: Iterable[Stack] = (),
) -> WeightStore:
    """Write the values, open the artifact and load it.

    :param format: of all that may be quantised; the rest is fp32.
    :param stacks: parameters that are rows of one object.
    """
    registry = subject.report.registry
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.ninfer"
        stack_of = {name: stack for stack in stacks for name in stack}
        _model(subject).write(path, values, format=format, stacks=stack_of)
        return load_weights(
            open_artifact(path), formats={n: each.spec for n, each in registry.formats.items()},
            layouts={n: each.spec for n, each in registry.layouts.items()},
        )


def _model(subject: Subject) -> TinyModel:
    parameters = subject.implementation.parameters(subject.config)
    return TinyModel(subject.model, parameters, subject.report.registry)
