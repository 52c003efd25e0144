"""A build context over random parameters and the reference kernels."""

from itertools import groupby

import pytest
import torch
from attrs import define, field, frozen

from ninfer_core.api import (
    FormatSpec,
    KernelRequest,
    KernelSpec,
    KVCodecSpec,
    PagedStateSpec,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.binder import Binder
from ninfer_core.state.store import StateStore
from ninfer_fixtures.contracts import CONTRACTS

FP32 = FormatSpec("fp32", "unused.module:codec", 32)
KV = PagedStateSpec("kv", 1, (StatePlane("key", (2, 8)), StatePlane("value", (2, 8))))
CODEC = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
SHAPES = {
    "q": (32, 24), "k": (16, 24), "v": (16, 24), "o": (24, 32), "gate": (40, 24), "up": (40, 24),
    "down": (24, 40), "norm": (24,), "table": (50, 24), "head": (50, 24),
    "q_bias": (32,), "k_bias": (16,), "v_bias": (16,), "o_bias": (24,),
}
SPARSE_STEPS = {  # of 75 tokens or so, from any place of a block to any other
    "at once": [(75, None)],
    "chunks": [(64, None), (3, None), (1, None), (7, None)],
    "one by one": [(9, None)] + [(1, None)] * 66,
    "drafts": [(30, None), (4, 2), (4, 4), (4, 0), (4, 1), (1, None), (5, 5), (4, 3), (3, 2),
               (4, 0), (4, 0), (3, 3), (4, 1), (18, None), (2, 1), (1, None), (1, None)],
}


class Plain:
    """Codec and layout of weights whose only plane is their values."""

    def unpack(self, format_name, shape, planes):
        return dict(planes)

    def dequantize(self, parts):
        return parts["codes"].to(torch.float32, copy=True)


@frozen
class Registered:
    spec: KernelSpec
    provenance: str = "core"


@define
class Context:
    """The least that a `BuildContext` is."""

    parameters: dict
    binder: Binder
    store: StateStore
    buffers: dict = field(factory=dict)
    compute_dtype = torch.float32
    device = torch.device("cpu")
    max_tokens, max_logits, max_context = 80, 3, 256

    def weight(self, *names):
        stacked = torch.cat([self.parameters[name] for name in names])
        info = WeightInfo(tuple(stacked.shape), FP32, "plain")
        return Weight(info, {"codes": stacked}, Plain(), Plain())

    def weight_runs(self, *names):
        return [self.weight(*run) for _, run in groupby(names, lambda n: self.parameters[n].dtype)]

    def tensor(self, name, *, dtype=None):
        return self.parameters[name].to(dtype or self.compute_dtype)

    def state(self, name, layer):
        return self.store.view(name, layer)

    def bind(self, op, *, sizes=None, **constants):
        request = KernelRequest(op=op, device="cpu", dtype="float32", sizes=sizes or {})
        return self.binder.bind(request, **constants)

    def buffer(self, name, width, *, dtype=None):
        dtype = dtype or torch.float32
        poisoned = torch.full((self.max_tokens, width), -1 if dtype == torch.int32 else torch.nan)
        whole = self.buffers.setdefault(name, poisoned.to(dtype))
        assert whole.shape[1] == width and whole.dtype == dtype
        return lambda count: whole[:count]


@pytest.fixture
def parameters():
    generator = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def _context(parameters, contracts):
    references = [each.reference_kernel() for each in contracts]
    kernels = {spec.name: Registered(spec) for spec in references}
    store = StateStore(
        [KV], CODEC, num_pages=4, max_sequences=1, max_context=256, max_verify_rows=1
    )
    return Context(parameters, Binder(kernels, CONTRACTS, device="cpu"), store)


@pytest.fixture
def context(parameters):
    return _context(parameters, [each for each in CONTRACTS.values() if not each.fused])


@pytest.fixture
def fused_context(parameters):
    """In which there are kernels of fused ops, too."""
    return _context(parameters, CONTRACTS.values())


@pytest.fixture(params=SPARSE_STEPS)
def sparse_steps(request):
    """For `drive`: steps of a sequence through blocks of four tokens."""
    return SPARSE_STEPS[request.param]


def _run(block, context, x, steps, drive, **facts):
    count = 80  # tokens, and some of a step that may lie behind the last

    def call(part, batch):
        stream = torch.ones_like(part)
        block(part, batch, stream)
        chosen = torch.zeros(len(part), count)
        for t, blocks in enumerate(context.buffers["selected_blocks"][: len(part)]):
            end = int(batch.positions[t]) + 1
            own = blocks[blocks >= 0].tolist()
            assert own == sorted({*own}) and len(own) == min(blocks.numel(), end // 4)
            for each in own:
                chosen[t, 4 * each : 4 * each + 4] = 1
            chosen[t, end // 4 * 4 : end] = 1
        return torch.cat((stream - 1, chosen), 1)

    out = drive(call, [x], steps, **facts)
    return out[:, : x.shape[1]], out[:, x.shape[1] : -5]


@pytest.fixture
def run_sparse(drive):
    """``(block, context, x, steps, **facts) -> (outputs, tokens attended to)`` of sparse attention
    over blocks of four tokens."""
    return lambda *arguments, **facts: _run(*arguments, drive, **facts)
