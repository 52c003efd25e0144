"""Formats and layouts to read with."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts


@pytest.fixture(scope="session")
def formats() -> dict[str, Any]:
    return {spec.name: spec for spec in ninfer_weight_formats()}


@pytest.fixture(scope="session")
def layouts() -> dict[str, Any]:
    return {spec.name: spec for spec in ninfer_weight_layouts()}
