"""Tiles of products: the table is legal, and so is what is chosen without it."""

import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_triton_kernels.tuning import (
    GROUP_WARPS,
    Tile,
    block_columns,
    candidate_tiles,
    choose_tile,
    group_tile,
)

TABLE = tomllib.loads(files("ninfer_triton_kernels").joinpath("tuning.toml").read_text())
KINDS = ("bf16", "fp32", "fp8", "fp8_g128", "q4_g64", "q5_g64", "q6_g64", "q8_g32", "nvfp4",
         "q4_g32_min")


def is_legal(tile: Tile) -> bool:
    powers = all(n >= 1 and n & (n - 1) == 0 for n in (tile.rows, tile.warps, tile.blocks))
    return powers and 16 <= tile.rows <= 128 and tile.warps <= 8 and 1 <= tile.splits <= 12 and (
        1 <= tile.stages <= 8)


@pytest.mark.parametrize("capability", TABLE)
def test_rows_of_the_table_are_legal_and_each_shape_comes_once(capability):
    for kind, rows in TABLE[capability].items():
        assert kind in KINDS
        assert len({(row["rows"], row["depth"]) for row in rows}) == len(rows)
        for row in rows:
            tile = choose_tile(kind, row["rows"], row["depth"], 132, int(capability))
            assert [*row["tile"]] == [
                tile.rows, tile.warps, tile.blocks, tile.splits, tile.stages]
            assert is_legal(tile)
            steps = -(-row["depth"] // (block_columns(kind) * tile.batch))
            assert tile.splits <= steps  # none is idle
            assert tile in candidate_tiles(kind, row["rows"], row["depth"], 132)


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 300_000), depth=st.integers(1, 32_768),
       processors=st.integers(1, 200), capability=st.sampled_from([90, 120, 121]))
def test_any_shape_has_a_legal_tile(kind, rows, depth, processors, capability):
    tile = choose_tile(kind, rows, depth, processors, capability)
    assert is_legal(tile)
    assert tile == choose_tile(kind, rows, depth, processors, capability)


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 300_000), depth=st.integers(1, 32_768),
       tokens=st.sampled_from([1, 8, 9, 16, 32]))
def test_more_tokens_keep_the_order_of_sums(kind, rows, depth, tokens):
    tile = choose_tile(kind, rows, depth, 132, 90)
    more = tile.for_tokens(tokens, 0 if kind == "fp8" else 64)
    assert is_legal(more) and (more.batch, more.splits) == (tile.batch, tile.splits)


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 300_000), depth=st.integers(1, 32_768),
       processors=st.integers(1, 200))
def test_candidates_are_legal_and_few(kind, rows, depth, processors):
    tiles = candidate_tiles(kind, rows, depth, processors)
    assert 1 <= len(tiles) <= 100 and len({*tiles}) == len(tiles)
    assert all(is_legal(tile) for tile in tiles)
    for tile in tiles:
        assert (tile.splits - 1) * tile.batch * block_columns(kind) < depth  # none is idle


@pytest.mark.parametrize("kind, group, rows", [
    ("q5_g64", (4096, 12288, 96), 32),  # 518 programs of 132 processors: 4 or 3 each
    ("q4_g64", (7168, 7168), 16),  # 448: a third of them would have 4, the others 3
    ("bf16", (4096, 12288, 96), 16),
])
def test_weights_of_one_launch_share_the_card_evenly(kind, group, rows):
    tile = group_tile(kind, Tile(16, 8, splits=4), group, 132)
    assert tile.rows == rows and (tile.warps, tile.splits) == (GROUP_WARPS, 1)


@given(kind=st.sampled_from(KINDS), group=st.lists(st.integers(1, 300_000), min_size=1),
       processors=st.integers(1, 200))
def test_weights_of_one_launch_have_legal_tiles(kind, group, processors):
    alone = choose_tile(kind, group[0], 5120, processors, 90)
    tile = group_tile(kind, alone, group, processors)
    assert is_legal(tile) and (tile.warps, tile.splits) == (GROUP_WARPS, 1)
