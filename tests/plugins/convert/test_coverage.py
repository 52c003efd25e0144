"""Every parameter is given once, every tensor is consumed once or ignored; else it is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from attrs import evolve

from ninfer_convert.coverage import check_parameters, check_tensors
from ninfer_core.api import ArtifactError, ImportedParameter, ImportPlan, ParameterSpec

A, B = ParameterSpec("a", (4, 6)), ParameterSpec("b", (6,), "direct")
TIED = ParameterSpec("head", (4, 6), tied_to="a")


def imported(spec, *sources):
    return ImportedParameter(spec, sources, values=lambda: None)


def plan_of(*parameters, ignored=()):
    return ImportPlan({}, parameters, {}, dict.fromkeys(ignored, "not needed"), ())


def source_of(**shapes):
    tensors = {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}
    return SimpleNamespace(tensors=tensors)


PLAN = plan_of(imported(A, "x"), imported(B, "y"))


def test_a_complete_plan_passes():
    check_parameters(PLAN, (A, B, TIED))
    check_tensors(PLAN, source_of(x=(4, 6), y=(6,)))


def test_a_missing_parameter_is_named():
    with pytest.raises(ArtifactError, match="lacks parameters: b"):
        check_parameters(plan_of(imported(A, "x")), (A, B))


def test_a_parameter_given_twice_is_named():
    with pytest.raises(ArtifactError, match="twice: a"):
        check_parameters(plan_of(imported(A, "x"), imported(A, "y")), (A,))


@pytest.mark.parametrize("spec", [ParameterSpec("c", (1,)), evolve(B, shape=(7,)), TIED])
def test_a_parameter_the_model_does_not_have_is_named(spec):
    with pytest.raises(ArtifactError, match=f"does not have: {spec.name}|lacks parameters: b"):
        check_parameters(plan_of(imported(A, "x"), imported(spec, "y")), (A, B, TIED))


def test_a_tensor_without_a_place_is_named():
    with pytest.raises(ArtifactError, match="no place in the model: z"):
        check_tensors(PLAN, source_of(x=(4, 6), y=(6,), z=(1,)))


def test_ignored_tensors_need_no_place():
    plan = plan_of(imported(A, "x"), ignored=["z"])
    check_tensors(plan, source_of(x=(4, 6), z=(1,)))


def test_a_tensor_both_consumed_and_ignored_is_named():
    with pytest.raises(ArtifactError, match="consumed and ignored: x"):
        check_tensors(plan_of(imported(A, "x"), ignored=["x"]), source_of(x=(4, 6)))


def test_a_tensor_consumed_twice_is_named():
    plan = plan_of(imported(A, "x"), imported(ParameterSpec("c", (4, 6)), "x"))
    with pytest.raises(ArtifactError, match="more than once: x"):
        check_tensors(plan, source_of(x=(4, 6)))


def test_parameters_may_share_a_tensor_that_they_use_up():
    halves = plan_of(*(imported(ParameterSpec(name, (2, 6)), "x") for name in "cd"))
    check_tensors(halves, source_of(x=(4, 6)))
    with pytest.raises(ArtifactError, match="in part only: x"):
        check_tensors(halves, source_of(x=(5, 6)))


def test_a_parameter_may_be_made_of_several_tensors():
    check_tensors(plan_of(imported(A, "codes", "scales")), source_of(codes=(4, 6), scales=(4,)))


def test_long_lists_are_cut():
    with pytest.raises(ArtifactError, match=r"t0, t1, t2, t3, t4 and 15 more$"):
        check_tensors(plan_of(), source_of(**{f"t{i}": (1,) for i in range(20)}))
