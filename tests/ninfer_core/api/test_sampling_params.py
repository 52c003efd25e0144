"""Sampling parameters refuse what makes no sense, whoever builds them."""

import math

import pytest
from attrs import fields

from ninfer_core.api import RequestError, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.5), ("top_k", -1), ("top_p", -0.1), ("top_p", 1.1),
        ("min_p", -0.1), ("min_p", 1.5), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0), ("seed", -1), ("seed", 2**64),
    ],
)
def test_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name} is out of range"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_nan_is_in_no_range(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: math.nan})


def test_the_ends_of_the_ranges_are_inside() -> None:
    SamplingParams(temperature=2, top_p=1, min_p=1, presence_penalty=-2, seed=2**64 - 1)
