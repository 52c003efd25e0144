"""Index keys against the references, and bit for bit."""

from functools import partial

import pytest
import torch

from ninfer_core.api import KernelRequest, KVCodecSpec, PagedStateSpec, PluginError, StatePlane
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import SlotPlanes
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.accepts import accept_mean_index_append
from ninfer_profile_cpu.bindings import index_keys
from ninfer_profile_cpu.kernels.pool import pool

HEADS, TOKENS, RECORD = 3, 150, 5
PAGES = {1: [5, 2, 8], 2: [1, 6, 7], 3: [3, 4, 9]}
POSITIONS = torch.randint(0, 200, (3, 200), generator=torch.Generator().manual_seed(4))
STEPS = {
    "at once": [(TOKENS, None)],
    "one by one": [(1, None)] * TOKENS,
    "chunks": [(70, None), (1, None), (3, None), (64, None), (12, None)],
    "drafts": [(61, None), (5, 3), (4, 4), (3, 0), (1, None), (5, 1), (2, 2), (5, 5), (70, None),
               (4, 3)],
}


class Mean:
    """Queries and keys."""

    has_axes = False

    @classmethod
    def bind(cls, factory, randn, planes, tail, dim, block):
        half = dim // 4
        sizes = {"num_heads": HEADS, "head_dim": dim, "block": block, "rotary_dim": 2 * half,
                 "eps": 0.01, "unit_offset": True}
        return factory(
            KernelRequest("mean_index_append", "cpu", "float32", kv_codec="float32", sizes=sizes),
            planes, tail, randn(200, half, seed=3).sin(), randn(200, half, seed=3).cos(),
            torch.arange(half) % 3 if cls.has_axes else None, randn(dim, seed=8),
            randn(dim, seed=9),
        )

    @staticmethod
    def widths(dim):
        return HEADS * dim, dim

    @staticmethod
    def tail_width(dim):
        return dim + 3


class MeanByAxes(Mean):
    has_axes = True


class Softmax:
    """Keys and scores."""

    @staticmethod
    def bind(factory, randn, planes, tail, dim, block):
        sizes = {"head_dim": dim, "block": block, "eps": 0.01}
        request = KernelRequest(
            "softmax_index_append", "cpu", "float32", kv_codec="float32", sizes=sizes)
        norms = randn(dim, seed=8), randn(dim, seed=9), randn(block, dim, seed=10)
        return factory(request, planes, tail, *norms)

    @staticmethod
    def widths(dim):
        return dim, dim

    @staticmethod
    def tail_width(dim):
        return 2 * dim


KINDS = {"mean": Mean, "mean by axes": MeanByAxes, "softmax": Softmax}


def own(kind):
    return getattr(index_keys, f"bind_{'softmax' if kind is Softmax else 'mean'}_index_append")


def reference(kind):
    name = f"{'softmax' if kind is Softmax else 'mean'}_index_append"
    return CONTRACTS[name].reference.load()


@pytest.fixture
def make(randn):
    """``(factory, kind, dim, block, tail=64) -> (call, entries, columns)``; all that nobody wrote
    is a NaN."""

    def make(factory, kind, dim, block, tail=64):
        plane = StatePlane("index_key", (dim,), block)
        store = StateStore(
            [PagedStateSpec("kv", 1, (plane,), "float32")],
            KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=10,
            max_sequences=3, max_context=256, max_verify_rows=RECORD,
        )
        store.memory.rows.fill_(0xFF)
        wide = torch.full((4, tail * kind.tail_width(dim) + 3), torch.nan)
        columns = wide[:, :-3].view(4, tail, -1)
        planes = store.view("kv", 0)
        slots = SlotPlanes(columns, torch.zeros(4, RECORD, 0))
        append = kind.bind(factory(kind), randn, planes, slots, dim, block)

        def call(first, second, batch):
            first = first.clone()  # queries are changed in place
            append(first, second, batch)
            return first

        return call, planes.planes["index_key"]["values"], columns

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dim", "block"), [(1, 4), (14, 1), (24, 4), (37, 8), (128, 4), (20, 32)])
def test_rows_of_all_kinds(kind, dim, block, make, randn, step_batch):
    steps = [[(1, 0, 70, 0, True), (2, 0, 30, 0, True)],
             [(2, 30, 5, 0, False), (1, 70, 3, 0, False)],
             [(1, 71, 5, 0, True), (3, 0, 9, 0, True), (2, 33, 2, 0, True)]]
    kind, made = KINDS[kind], []
    for factory in (own, reference):
        call, entries, columns = make(factory, kind, dim, block)
        outs = []
        for rows in steps:
            count = sum(row[2] for row in rows)
            wide = [randn(count, w + 5, seed=w + count)[:, 2:-3] for w in kind.widths(dim)]
            outs.append(call(*wide, step_batch(*rows, pages=PAGES, rope_positions=POSITIONS)))
        made.append((entries, columns, torch.cat(outs)))
    for found, wanted in zip(*made, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_depend_on_the_tokens_alone(kind, steps, make, randn, drive):
    kind, results = KINDS[kind], []
    inputs = [randn(TOKENS, width, seed=width) for width in kind.widths(24)]
    for each in (steps, "at once"):
        call, entries, _ = make(own, kind, 24, 4)
        outs = drive(call, inputs, STEPS[each], pages=PAGES, rope_positions=POSITIONS)
        results.append((outs, entries[PAGES[1]].flatten(0, 1)[: TOKENS // 4]))
    for found, wanted in zip(*results, strict=True):
        assert found.equal(wanted) and wanted.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_company_or_threads(kind, make, randn, step_batch):
    rows = [(1, 0, 33, 0, True), (2, 0, 5, 0, True), (3, 0, 66, 0, True)]
    kind, results, before = KINDS[kind], [], pool().num_threads
    inputs = [randn(104, width, seed=width) for width in kind.widths(24)]
    batch_of = partial(step_batch, pages=PAGES, rope_positions=POSITIONS)
    for num_threads in (1, 3):
        pool().set_num_threads(num_threads)
        call, entries, columns = make(own, kind, 24, 4)
        outs, start = [], 0
        for group in [rows] if num_threads == 3 else [[row] for row in rows]:
            end = start + sum(row[2] for row in group)
            outs.append(call(*[x[start:end] for x in inputs], batch_of(*group)))
            start = end
        results.append((torch.cat(outs), entries, columns))
    pool().set_num_threads(before)
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_what_is_refused(make):
    with pytest.raises(PluginError, match="wrong size"):
        make(own, Softmax, 8, 8, tail=8)
    request = KernelRequest("mean_index_append", "cpu", "float32", kv_codec="int8")
    assert "int8" in (accept_mean_index_append(request) or "")
