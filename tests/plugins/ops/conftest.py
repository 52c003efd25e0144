"""Requests, caches and batches for tests of ops."""

from collections.abc import Callable

import pytest

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_fixtures import ops


@pytest.fixture
def make_weight() -> Callable[..., Weight]:
    return ops.make_weight


@pytest.fixture
def make_request() -> Callable[..., KernelRequest]:
    return ops.make_request


@pytest.fixture(params=ops.STEPS)
def steps(request: pytest.FixtureRequest) -> list[tuple[int, int | None]]:
    """For `drive`: ways through 40 tokens."""
    return ops.STEPS[request.param]
