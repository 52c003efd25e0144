"""Caches and batches for tests of ops."""

from collections.abc import Callable

import pytest

from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes
from ninfer_fixtures import ops


@pytest.fixture
def make_cache() -> Callable[..., PagedPlanes]:
    return ops.make_cache


@pytest.fixture
def make_batch() -> Callable[..., StepBatch]:
    return ops.make_batch
