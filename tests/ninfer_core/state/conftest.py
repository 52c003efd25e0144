"""A store, a cache and a model on them; see `ninfer_fixtures.state_lab`."""

from __future__ import annotations

import pytest

from ninfer_fixtures.state_lab import Lab


@pytest.fixture
def lab():
    return Lab
