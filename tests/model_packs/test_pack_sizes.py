"""A pack stays topology and names: what is mathematics is a block that all share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "model_packs"
MOST_LINES = 1100


@pytest.mark.parametrize("pack", ["flash_next", "glm", "qwen_dense", "qwen_moe", "smollm2"])
def test_a_pack_is_short(pack):
    lines = [line for file in (ROOT / pack).rglob("*.py") for line in file.read_text().splitlines()]
    assert 0 < sum(bool(line.strip()) for line in lines) < MOST_LINES
