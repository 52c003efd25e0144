"""Configs of models: read without coercion, and refused by the names of all odd keys."""

from __future__ import annotations

import pytest
from attrs import field, frozen
from attrs.validators import gt

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.schema import read_config


@frozen
class Config:
    size: int = field(validator=gt(0))
    eps: float
    kinds: tuple[str, ...] = ()
    tied: bool = False


def test_other_keys_are_ignored_and_integers_are_numbers():
    config = read_config(Config, {"size": 3, "eps": 1, "kinds": ["a", "b"], "more": None}, "Toy")
    assert config == Config(3, 1.0, ("a", "b"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("size", value) for value in ("3", 3.0, 3.5, True, None, [3], -1, 0, 10**30)),
        *(("eps", value) for value in ("1e-5", True, None, float("nan"), float("inf"), 10**400)),
        *(("tied", value) for value in ("false", 0, 1, None)),
        *(("kinds", value) for value in ("ab", [1], {"a": 1})),
    ],
)
def test_no_value_is_coerced(key, value):
    with pytest.raises(ArtifactError, match=rf"config is not that of a Toy.*{key}"):
        read_config(Config, {"size": 3, "eps": 1e-5, key: value}, "Toy")


def test_all_faults_are_named_together():
    with pytest.raises(ArtifactError, match=r"size is missing.*eps.*tied"):
        read_config(Config, {"eps": "x", "tied": 1}, "Toy")
