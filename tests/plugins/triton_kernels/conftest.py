"""Helpers of the Triton kernels' tests. With a card they run on it; without one, in Triton's
interpreter, where a program costs milliseconds: shapes are small and tiles large."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.weight import Weight
from ninfer_core.plugin_host.builtin import (
    ninfer_weight_formats,
    ninfer_weight_layouts,
)
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_pack_smollm2.plugin import FORMAT, LAYOUT
from ninfer_triton_kernels.plugin import ninfer_kernels
from ninfer_triton_kernels.plugin import ninfer_weight_layouts as own_layouts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = {spec.name: spec for spec in ninfer_kernels()}
SPECS = {spec.name: spec for spec in [*ninfer_weight_formats(), FORMAT]}
LAYOUTS = {spec.name: spec for spec in [*ninfer_weight_layouts(), *own_layouts(), LAYOUT]}
DEFAULT_LAYOUTS = {
    "fp32": "contiguous_le_v1", "bf16": "contiguous_le_v1", "q4_g64_fp16": "row_split_k128_v1",
    "q5_g64_fp16": "row_split_k128_v1", "q6_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1", "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "fp8_e4m3fn_g128_fp32": "row_scale_g128_v1", "nvfp4": "block_scale_k16_plain_v1",
    "q4_1_g32_fp16": "half_split_k32_v1",
}


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture
def randn() -> Callable[..., Tensor]:
    """bf16 on the device; the same for the same seed and shape."""

    def randn(*shape: int, seed: int = 1, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*shape, generator=generator) * scale).bfloat16().to(DEVICE)

    return randn


@pytest.fixture
def poisoned() -> Callable[..., Tensor]:
    """bf16 NaN on the device: what a kernel must have written is none."""
    return lambda *shape: torch.full(shape, torch.nan, dtype=torch.bfloat16, device=DEVICE)


def _nvfp4_parts(*shape: int, seed: int) -> dict[str, Tensor]:
    """Every scale there is, 0 and subnormal ones among them."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randint(
        0, 127, (*shape[:-1], shape[-1] // 16), generator=generator, dtype=torch.uint8)
    codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    divisor = 1e4 * (1 + torch.rand(shape[:-2], generator=generator))
    return {"codes": codes, "scales": scales.view(torch.float8_e4m3fn), "divisor": divisor}


def _weight(name: str, *shape: int, layout: str = "", seed: int = 3) -> Weight:
    generator = torch.Generator().manual_seed(seed)
    if name == "nvfp4":
        parts = _nvfp4_parts(*shape, seed=seed)
    else:
        values = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
        parts = SPECS[name].codec.load()().quantize(values)
    layout_name = layout or DEFAULT_LAYOUTS[name]
    stored = LAYOUTS[layout_name].layout.load()()
    image = stored.pack(name, parts).to(DEVICE)
    planes = {plane.name: plane_view(image, plane) for plane in stored.planes(name, shape)}
    info = _info(shape, name, layout_name)
    return Weight(info, planes, SPECS[name].codec.load()(), stored)


def _info(shape, name, layout):
    from ninfer_core.api import WeightInfo

    return WeightInfo(tuple(shape), SPECS[name], layout)


@pytest.fixture
def make_weight() -> Callable[..., Weight]:
    """``(format, *shape, layout=, seed=)`` of random values, on the device."""
    return _weight


@pytest.fixture
def bind():
    """``(op, sizes, kv_codec, name=, **constants) -> (kernel, reference)`` for one request."""

    def bind(op, sizes=None, kv_codec="", max_tokens=256, name="", **constants):
        kernel = KERNELS[name or f"triton.{op}"]
        given = [c if isinstance(c, tuple) else (c,) for c in constants.values()]
        weights = tuple(each.info for one in given for each in one if isinstance(each, Weight))
        request = KernelRequest(
            op, "cuda", "bfloat16", 90, weights, kv_codec, max_tokens, sizes or {})
        assert kernel.accepts.load()(request) is None
        factories = kernel.factory.load(), CONTRACTS[op].reference.load()
        return [factory(request, **constants) for factory in factories]

    return bind


def _batch(
    *rows: tuple[int, ...], pages: int = 0, seed: int = 5, tables: list[list[int]] | None = None,
) -> StepBatch:
    """Rows of (first position, tokens), each with pages of its own in a shuffled order, or with
    those of ``tables``."""
    counts = [-(-(begin + count) // PAGE_TOKENS) for begin, count in rows]
    sizes = {"max_tokens": sum(row[1] for row in rows) + 3, "max_rows": len(rows) + 1}
    batch = StepBatch.allocate(**sizes, max_pages=pages or max(counts), max_logits=1)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + 1
    batch.num_rows = len(rows)
    for index, (begin, count) in enumerate(rows):
        live = slice(batch.num_tokens, batch.num_tokens + count)
        batch.token_row[live] = index
        batch.positions[live] = torch.arange(begin, begin + count)
        batch.rope_positions[:, live] = batch.positions[live]
        batch.num_tokens += count
        batch.row_start[index + 1], batch.context_len[index] = batch.num_tokens, begin
        batch.page_table[index, : counts[index]] = order[: counts[index]].int()
        order = order[counts[index] :]
        if tables:
            batch.page_table[index, : len(tables[index])] = torch.tensor(tables[index]).int()
    return _moved(batch)


def _moved(batch: StepBatch) -> StepBatch:
    for name, value in vars_of(batch).items():
        if isinstance(value, Tensor):
            setattr(batch, name, value.to(DEVICE))
    return batch


def vars_of(batch: StepBatch) -> dict[str, object]:
    return {name: getattr(batch, name) for name in StepBatch.__slots__ if name[0] != "_"}


@pytest.fixture
def paged_batch() -> Callable[..., StepBatch]:
    return _batch
