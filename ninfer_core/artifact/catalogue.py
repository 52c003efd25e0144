"""The catalogue of a set: what is stored, what it is called, and how it may be used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal

from attrs import field, frozen
from attrs.validators import deep_iterable, ge, max_len, min_len, optional

from ninfer_core.artifact.schema import MAX_U64


@frozen
class TensorObject:
    """A stored tensor: ``bytes`` bytes of the payload from ``offset`` on."""

    id: str
    kind: Literal["tensor"]
    shape: tuple[int, ...] = field(validator=[max_len(16), deep_iterable(ge(1))])
    format: str
    layout: str
    offset: int
    bytes: int = field(validator=ge(1))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Extent of the first dimension; 1 for a scalar."""
        return self.shape[0] if self.shape else 1


@frozen
class ResourceObject:
    """A stored file."""

    id: str
    kind: Literal["resource"]
    encoding: Literal["raw_bytes_v1"]
    offset: int
    bytes: int = field(validator=ge(1))


@frozen
class Part:
    """Elements ``range = (begin, end)`` of a tensor, in C order of its logical shape."""

    object: str
    range: tuple[int, ...] = field(validator=[min_len(2), max_len(2)])


@frozen
class Binding:
    """Where the elements of a parameter are: one whole object, or parts in order."""

    object: str | None = None
    parts: tuple[Part, ...] | None = field(default=None, validator=optional(min_len(1)))

    def __attrs_post_init__(self) -> None:
        _demand((self.object is None) != (self.parts is None), "either object or parts is needed")

    def spans(self) -> list[tuple[str, tuple[int, ...] | None]]:
        """Ids of objects, each with a range of elements, or None for all of them."""
        if self.object is not None:
            return [(self.object, None)]
        return [(part.object, part.range) for part in self.parts or ()]


@frozen
class Use:
    """What the product of ``parameter`` with ``input`` may do with its activations."""

    parameter: str
    input: str
    activation_policy: Literal["A16Only", "AllowA8", "AllowA4"] | None = None
    auxiliaries: Mapping[str, Binding] = field(factory=dict)


@frozen
class Proposal:
    """The draft head: over the full vocabulary, or over ``rows`` indexed tokens."""

    domain: Literal["full", "indexed"]
    rows: int | None = field(default=None, validator=optional(ge(1)))


@frozen
class Component:
    """A part of the model that can be left out. ``resources``: role -> object id."""

    config: Mapping[str, Any]
    target: str | None = None
    resources: Mapping[str, str] = field(factory=dict)
    proposal: Proposal | None = None


@frozen
class File:
    """A file of the set: its name beside the entry; None for the entry itself."""

    path: Any
    payload_bytes: int = field(validator=ge(1))


@frozen
class Catalogue:
    """The root record; constructing it checks that all of it fits together.

    :ivar objects: in the order of their offsets.
    :ivar bindings: by logical parameter name.
    :raises ValueError: what does not fit.
    """

    components: Mapping[str, Component]
    objects: tuple[TensorObject | ResourceObject, ...] = field(validator=min_len(1))
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[File, ...] = field(validator=min_len(1))
    metadata: Mapping[str, Any] = field(factory=dict)
    provenance: Mapping[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._check_files()
        self._check_objects()
        self._check_components()
        self._check_uses()
        self._check_bindings()

    def _check_files(self) -> None:
        first, *others = (file.path for file in self.files)
        _demand(first is None, "the entry has a path")
        for path in others:
            bare = isinstance(path, str) and path not in ("", ".", "..") and not {*path} & {*"/\\"}
            _demand(bare, f"{path!r} is not the name of a file beside the entry")
        _demand(len({*others}) == len(others), "two files have the same path")

    def _check_objects(self) -> None:
        total, end = sum(file.payload_bytes for file in self.files), 0
        for each in self.objects:
            _demand(each.offset >= end, f"object {each.id!r} begins before its predecessor ends")
            end = each.offset + each.bytes
        _demand(end <= total <= MAX_U64, f"objects end at byte {end} of a payload of {total}")
        _demand(len({o.id for o in self.objects}) == len(self.objects), "two objects have one id")

    def _check_components(self) -> None:
        resources = {each.id for each in self.objects if each.kind == "resource"}
        _demand("text" in self.components, "component 'text' is missing")
        for name, each in self.components.items():
            absent = {*each.resources.values()} - resources
            absent |= {each.target or name} - self.components.keys()
            _demand(not absent, f"component {name!r} refers to {absent}, which is missing")
            _demand(name == "text" or each.proposal is None, f"component {name!r} has a proposal")

    def _check_uses(self) -> None:
        for parameter in {use.parameter for use in self.uses} - self.bindings.keys():
            raise ValueError(f"a use refers to parameter {parameter!r}, which is missing")
        pairs = {(use.parameter, use.input) for use in self.uses}
        _demand(len(pairs) == len(self.uses), "two uses have the same parameter and input")

    def _check_bindings(self) -> None:
        sizes = {o.id: o.num_elements for o in self.objects if isinstance(o, TensorObject)}
        auxiliaries = (pair for use in self.uses for pair in use.auxiliaries.items())
        for name, binding in chain(self.bindings.items(), auxiliaries):
            for object_id, span in binding.spans():
                _demand(object_id in sizes, f"{name!r} refers to {object_id!r}, which is missing")
                begin, end = span or (0, sizes[object_id])
                fits = begin < end <= sizes[object_id] <= MAX_U64
                _demand(fits, f"{name!r} has elements {begin} to {end} of {object_id!r}")


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
