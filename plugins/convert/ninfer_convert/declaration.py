"""What the catalogue says of planned objects: tensors, bindings and uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ninfer_artifact_writer.writer import Outline
from ninfer_convert.objects import StoredObject
from ninfer_convert.storage import choose
from ninfer_core.api import ArtifactError, ImportedParameter, ParameterSpec, StorageChoice
from ninfer_core.artifact.catalogue import Part

DIVISOR = "activation_input_divisor"
"""Auxiliary of a product with 4-bit activations: an fp32 number that its input is divided by before
it is rounded."""

Place = str | list[Part]


def declare(
    outline: Outline, objects: Iterable[StoredObject], expected: Iterable[ParameterSpec],
    recipe: Sequence[StorageChoice],
) -> None:
    """Declare objects, and for every parameter where it is and what its products may do.

    :raises ArtifactError: if a layout cannot hold an object, or the divisor of a product's input is
        not a positive number.
    """
    places, divisors, policies = dict[str, Place](), dict[str, Place](), dict[str, str]()
    for stored in objects:
        outline.add_tensor(
            stored.object_id, stored.shape, stored.format.name, stored.layout.name,
            stored.pieces, nbytes=stored.nbytes, alignment=stored.layout.alignment,
        )
        places |= _places(stored)
        policies |= {each.spec.name: choose(each.spec, recipe).activations
                     for each in stored.members}
        four_bits = [each for each in stored.members if policies[each.spec.name] == "AllowA4"]
        divisors |= _add_divisors(outline, stored.object_id, four_bits)
    for spec in expected:
        owner = spec.tied_to or spec.name
        outline.bind(spec.name, places[owner])
        auxiliaries = {DIVISOR: divisors[owner]} if owner in divisors else None
        for activation in spec.inputs:
            outline.use(spec.name, activation, policies[owner], auxiliaries)


def _places(stored: StoredObject) -> Iterator[tuple[str, Place]]:
    """Where each member is: the whole object, or a range of its elements."""
    object_id, begin = stored.object_id, 0
    for member in stored.members:
        end = begin + math.prod(member.spec.shape)
        alone = len(stored.members) == 1
        yield member.spec.name, object_id if alone else [Part(object_id, (begin, end))]
        begin = end


def _add_divisors(
    outline: Outline, owner: str, members: Iterable[ImportedParameter]
) -> Mapping[str, Place]:
    """Store what the inputs of the products of an object's members are divided by, where it is
    known: one number if it is the same for all, else one for each."""
    numbers = {member.spec.name: _divisor(member) for member in members}
    found = {name: number for name, number in numbers.items() if number is not None}
    if not found:
        return {}
    object_id, values = f"{owner}/{DIVISOR}", torch.tensor([*found.values()])
    shared = len({*found.values()}) == 1
    image, shape = (values[:1], ()) if shared else (values, values.shape)
    outline.add_tensor(object_id, shape, "fp32", "contiguous_le_v1", image.view(torch.uint8))
    return {
        name: object_id if shared else [Part(object_id, (at, at + 1))]
        for at, name in enumerate(found)
    }


def _divisor(member: ImportedParameter) -> float | None:
    number = member.scalars().get(DIVISOR) if member.scalars else None
    if number is not None and not 0 < number < math.inf:
        raise ArtifactError(
            "the scale of a product's input is not usable", where=member.spec.name,
            why=f"it divides by {number}", fix="leave its activations at 16 bits in the recipe",
        )
    return number
