"""Weights, requests, caches and batches for tests of ops."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer_core.api import (
    KernelRequest,
    KVCodecSpec,
    PagedStateSpec,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import ninfer_weight_formats, ninfer_weight_layouts
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import PagedPlanes

FORMATS = {spec.name: spec for spec in ninfer_weight_formats()}
LAYOUTS = {spec.name: spec for spec in ninfer_weight_layouts()}
STEPS = {  # of 40 tokens
    "at once": [(40, None)],
    "one by one": [(1, None)] * 40,
    "chunks": [(7, None), (1, None), (2, None), (30, None)],
    "drafts": [(12, None), (4, 3), (4, 4), (3, 0), (1, None), (4, 1), (2, 2), (17, None)],
}


def _weight(
    values: Tensor | dict[str, Tensor], format: str = "fp32", layout: str = "contiguous_le_v1"
) -> Weight:
    """Of values, or of the parts of a format."""
    spec, codec, stored = FORMATS[format], FORMATS[format].codec.load()(), LAYOUTS[layout]
    parts = codec.quantize(values) if isinstance(values, Tensor) else values
    geometry, shape = stored.layout.load()(), tuple(parts["codes"].shape)
    image = geometry.pack(format, parts)
    planes = {plane.name: plane_view(image, plane) for plane in geometry.planes(format, shape)}
    return Weight(WeightInfo(shape, spec, layout), planes, codec, geometry)


def _request(op: str, **facts: Any) -> KernelRequest:
    return KernelRequest(op=op, device="cpu", dtype="float32", **facts)


def _cache(heads: int, dim: int, codec: str = "fp32", pages: int = 16) -> PagedPlanes:
    planes = StatePlane("key", (heads, dim)), StatePlane("value", (heads, dim))
    kv = KVCodecSpec(codec, f"ninfer_core.state.codecs:{codec.capitalize()}Codec")
    store = StateStore(
        [PagedStateSpec("kv", 1, planes)], kv, num_pages=pages, max_sequences=1,
        max_context=4096, max_verify_rows=1,
    )
    return store.view("kv", 0)


def _batch(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> StepBatch:
    """Rows of (positions, pages)."""
    positions = [position for row, _ in rows for position in row]
    batch = StepBatch.allocate(
        max_tokens=len(positions) + 3, max_rows=len(rows) + 1, max_pages=16, max_logits=1
    )
    batch.num_tokens, batch.num_rows = len(positions), len(rows)
    batch.positions[: len(positions)] = torch.tensor(positions)
    batch.rope_positions[:, : len(positions)] = batch.positions[: len(positions)]
    start = 0
    for index, (row, pages) in enumerate(rows):
        batch.token_row[start : start + len(row)] = index
        start += len(row)
        batch.row_start[index + 1] = start
        batch.page_table[index, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    return batch


@pytest.fixture
def make_weight() -> Callable[..., Weight]:
    return _weight


@pytest.fixture
def make_request() -> Callable[..., KernelRequest]:
    return _request


@pytest.fixture
def make_cache() -> Callable[..., PagedPlanes]:
    return _cache


@pytest.fixture
def make_batch() -> Callable[..., StepBatch]:
    return _batch


@pytest.fixture(params=STEPS)
def steps(request: pytest.FixtureRequest) -> list[tuple[int, int | None]]:
    """For `drive`: ways through 40 tokens."""
    return STEPS[request.param]
