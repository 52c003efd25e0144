"""L2: a pack's parameters."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import SkipTest

from attrs import evolve

from ninfer_conformance.lab import Lab, reference_kernels
from ninfer_conformance.subject import Subject
from ninfer_conformance.tiny import random_values, stored
from ninfer_conformance.tolerances import require, require_close
from ninfer_core.api import NInferError
from ninfer_core.artifact.store import WeightStore
from ninfer_fixtures.tiny import Values, stacked

_PACKED = ("q4_g64_fp16", "q8_g32_fp16")


class _Recorder:
    """Weights that keep what was asked of them."""

    def __init__(self, weights: WeightStore) -> None:
        self.weights, self.calls = weights, list[tuple[str, ...]]()

    def weight(self, *names: str) -> Any:
        self.calls.append(names)
        return self.weights.weight(*names)

    def weight_runs(self, *names: str) -> Any:
        self.calls.append(names)
        return self.weights.weight_runs(*names)

    def tensor(self, name: str) -> Any:
        return self.weight(name).dense()


def parameters_are_used_once(subject: Subject) -> None:
    """The build asks for every parameter once, or for one it is tied to, and for no other."""
    parameters = subject.implementation.parameters(subject.config)
    owner = {each.name: each.tied_to or each.name for each in parameters}
    require(len(owner) == len(parameters), "a name is declared twice")
    uses = Counter(name for call in _calls(subject) for name in call)
    require(uses.keys() <= owner.keys(), f"not declared, but used: {uses.keys() - owner.keys()}")
    wanted, got = Counter(owner.values()), Counter(owner[name] for name in uses.elements())
    wrong = {name: got[name] for name in wanted if got[name] != wanted[name]}
    require(not wrong, f"not used as often as declared, but so often: {wrong}")


def stored_weights_come_back(subject: Subject) -> None:
    """The artifact describes the same config, and rows of common objects are cut out exactly."""
    stacks = {call for call in _calls(subject) if len(call) > 1}
    for format in ("fp32", *_PACKED):
        values = random_values(subject, format)
        weights = stored(subject, values, format, stacks)
        again = subject.implementation.configure(weights.artifact.description())
        require(again == subject.config, f"the artifact describes {again}, not {subject.config}")
        for names in (*((name,) for name in values), *stacks):
            dense = weights.weight(*names).dense()
            require_close(dense, stacked(values, names), f"{' and '.join(names)} in {format}")


def packed_weights_compute(subject: Subject) -> None:
    """Models with quantised matrices compute what their numbers say."""
    for format in _PACKED:
        values = random_values(subject, format)
        packed, dense = (_lab(subject, values, each) for each in (format, "fp32"))
        tokens = dense.tokens(70)
        require_close(packed.fresh(tokens), dense.fresh(tokens), f"logits, {format}", "fp32")


def missing_parameters_are_named(subject: Subject) -> None:
    """A model that lacks a parameter is refused, and the error says which."""
    whole = random_values(subject)
    for name in {matrix.ndim: name for name, matrix in whole.items()}.values():
        try:
            _lab(subject, {other: values for other, values in whole.items() if other != name})
        except NInferError as error:
            require(name in str(error), f"{name} is missing, the error says only: {error}")
        else:
            require(False, f"{name} is missing, and yet the model is built")


def components_can_be_left_out(subject: Subject) -> None:
    """Without the components beside its text, the model has the parameters and states of its text
    alone, and computes the same."""
    text = {name: each for name, each in subject.model.components.items() if name == "text"}
    if text.keys() == subject.model.components.keys():
        raise SkipTest("there is only the text")
    bare = evolve(subject, model=evolve(subject.model, components=text))
    pack, kept, whole = subject.implementation, bare.config, subject.config
    for what in (pack.parameters, pack.states):
        names = {each.name for each in what(kept)}
        require(names < {each.name for each in what(whole)}, f"the text alone has {names}")
    less, more = (_lab(each, random_values(each)) for each in (bare, subject))
    tokens = more.tokens(70)
    require_close(less.fresh(tokens), more.fresh(tokens), "logits of the text alone")


def _lab(subject: Subject, values: Values, format: str = "fp32") -> Lab:
    return Lab(subject, reference_kernels(subject), stored(subject, values, format))


def _calls(subject: Subject) -> list[tuple[str, ...]]:
    recorder: Any = _Recorder(stored(subject, random_values(subject)))
    Lab(subject, reference_kernels(subject), recorder)
    return list(recorder.calls)


CHECKS = (
    parameters_are_used_once, stored_weights_come_back, packed_weights_compute,
    missing_parameters_are_named, components_can_be_left_out,
)
