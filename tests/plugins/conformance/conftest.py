"""The toy as a subject of single checks, for tests that break it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from ninfer_conformance.levels import CHECKS
from ninfer_conformance.subject import Subject

sys.path.append(str(Path(__file__).parents[2] / "toy"))


@pytest.fixture(scope="session")
def toy() -> Subject:
    from ninfer_conformance.subject import find_subject
    from ninfer_core.plugin_host import PluginSelection, load_plugins

    return find_subject(load_plugins(PluginSelection(modules=("ninfer_pack_toy.plugin",))), "toy")


@pytest.fixture
def failure_of(toy: Subject) -> Callable[..., str]:
    """``(check name, **changes of the toy)``: the detail of the failure; "" if the check passes."""

    def run(name: str, **changes: object) -> str:
        [check] = [each for each in CHECKS["packs"] if each.name == name]
        result = check.result(evolve(toy, **changes))
        assert result.status != "skipped", result.detail
        assert (result.status == "failed") == bool(result.detail)
        return result.detail

    return run
