"""Rows land in the right places of the persistent buffers, whatever was there before."""

import pytest
import torch
from attrs import evolve, fields, frozen
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.state.batch import BatchBuilder, Row, _DeviceCopy
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import SequenceState


@frozen(eq=False)
class StandIn:
    id: int
    begin: int
    state: SequenceState


def stand_in(number):
    pages = list(range(9 * number + 1, 9 * number + 7 - number))
    return StandIn(number, 60 * number, SequenceState(number + 1, pages, replay=number % 3))


SEQUENCES = [stand_in(number) for number in range(1, 5)]
ROW = st.tuples(st.sampled_from(SEQUENCES), st.integers(1, 5), st.integers(1, 5), st.booleans())
STEPS = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4)


def row(drawn):
    sequence, length, logits, certain = drawn
    tokens = [10 * sequence.id + i for i in range(length)]
    return Row(
        sequence.id, sequence.state, sequence.begin, tokens, min(length, logits), certain
    )


@given(steps=STEPS)
def test_a_batch_holds_its_rows_and_nothing_of_the_last_one(steps):
    builder = BatchBuilder(max_rows=4, max_tokens=20, max_logits=20, max_pages=8)
    for rows in ([row(drawn) for drawn in step] for step in steps):
        batch = builder.fill(rows)
        assert batch.num_rows == len(rows)
        assert batch.num_tokens == sum(len(r.token_ids) for r in rows)
        assert batch.num_pages == 0  # rows as of decode
        wanted = []
        for index, each in enumerate(rows):
            first, last = batch.row_start[index : index + 2].tolist()
            state = each.state
            assert batch.token_ids[first:last].tolist() == each.token_ids
            positions = list(range(each.begin, each.begin + last - first))
            assert batch.positions[first:last].tolist() == positions
            assert batch.rope_positions[:, first:last].tolist() == [positions] * 3
            assert set(batch.token_row[first:last].tolist()) == {index}
            table = state.pages + [0] * (8 - len(state.pages))
            assert batch.page_table[index].tolist() == table
            found = [batch.context_len, batch.slots, batch.replay, batch.certain]
            assert [int(tensor[index]) for tensor in found] == [
                each.begin, state.slot, state.replay, each.certain]
            wanted += range(last - each.num_logits, last)
        assert batch.logit_rows[: batch.num_logits].tolist() == wanted


@given(width=st.integers(1, 5), later=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_rows_that_begin_later_are_as_if_that_had_been_known(width, later):
    """Also what an earlier step has left in the buffers stays out."""
    sizes = {"max_rows": 4, "max_tokens": 20, "max_logits": 20, "max_pages": 8}
    moved, known = BatchBuilder(**sizes), BatchBuilder(**sizes)
    drawn = [row((SEQUENCES[index], width, width, False)) for index in range(len(later))]
    wanted = [
        evolve(each, begin=each.begin + by, replay=1 + by)
        for each, by in zip(drawn, later, strict=True)
    ]
    for _ in range(2):
        batch = moved.fill([evolve(each, replay=1) for each in drawn])
        batch.move(torch.tensor(later))
        same = known.fill(wanted)
        for each in fields(StepBatch):
            assert torch.as_tensor(getattr(batch, each.name)).equal(
                torch.as_tensor(getattr(same, each.name))), each.name


def test_the_buffers_are_never_replaced():
    builder = BatchBuilder(max_rows=2, max_tokens=4, max_logits=4, max_pages=8)
    first = builder.fill([row((SEQUENCES[2], 1, 1, True))])
    pointers = [first.token_ids.data_ptr(), first.page_table.data_ptr()]
    second = builder.fill([row((SEQUENCES[1], 2, 1, True))])
    assert [second.token_ids.data_ptr(), second.page_table.data_ptr()] == pointers


def test_a_table_follows_pages_that_are_added():
    builder = BatchBuilder(max_rows=1, max_tokens=1, max_logits=1, max_pages=8)
    state = SequenceState(1, [4])
    assert builder.fill([Row(9, state, 0, [1], 1)]).page_table[0].tolist() == [4, *[0] * 7]
    state.pages.append(5)
    assert builder.fill([Row(9, state, 0, [1], 1)]).page_table[0].tolist() == [4, 5, *[0] * 6]


def test_a_table_follows_a_state_that_takes_the_place_of_another():
    """A sequence that was paused comes back under its id with other pages."""
    builder = BatchBuilder(max_rows=1, max_tokens=1, max_logits=1, max_pages=8)
    for page in (4, 7):
        batch = builder.fill([Row(9, SequenceState(1, [page]), 0, [1], 1)])
        assert batch.page_table[0].tolist() == [page, *[0] * 7]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_device_gets_the_same_batch():
    sizes = {"max_rows": 4, "max_tokens": 20, "max_logits": 20, "max_pages": 8}
    rows = [row((sequence, 3, 2, True)) for sequence in SEQUENCES]
    host, device = (BatchBuilder(**sizes, device=d).fill(rows) for d in ("cpu", "cuda"))
    for name in ("token_ids", "positions", "row_start", "page_table", "logit_rows", "replay"):
        assert torch.equal(getattr(host, name), getattr(device, name).cpu())
    assert device.num_tokens == host.num_tokens == 12


@pytest.mark.parametrize("max_pages, bounds", [
    (8, [8]), (512, [512]), (600, [512, 600]), (4096, [512, 2048, 4096])])
def test_pages_of_longer_rows_are_bounded_by_few_numbers(max_pages, bounds):
    builder = BatchBuilder(
        max_rows=2, max_tokens=64, max_logits=2, max_pages=max_pages)
    assert builder.page_bounds == bounds
    for most in (1, 8, 511, 512, 513, 2048, 2049, max_pages):
        if most <= max_pages:
            rows = [Row(i, SequenceState(1, [3] * pages), 0, [1] * count, 1)
                    for i, (pages, count) in enumerate(((1, 12), (most, 21)))]
            bound = min(each for each in bounds if each >= most)
            assert builder.fill(rows).num_pages == bound
            assert builder.fill([rows[0], evolve(rows[1], token_ids=[1] * 20)]).num_pages == 0
    assert builder.pad(1, 32, certain=True, num_pages=bounds[0]).num_pages == bounds[0]


def test_padding_is_of_nobody():
    builder = BatchBuilder(max_rows=4, max_tokens=20, max_logits=20, max_pages=8)
    builder.fill([row((sequence, 3, 2, True)) for sequence in SEQUENCES])
    batch = builder.pad(3, 2)
    assert (batch.num_rows, batch.num_tokens, batch.num_logits) == (3, 6, 6)
    assert batch.num_pages == 0
    assert batch.token_row[:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.row_start[:4].tolist() == [0, 2, 4, 6]
    assert batch.logit_rows[:6].tolist() == [*range(6)]
    assert not batch.slots.any() and not batch.page_table.any() and not batch.certain[:3].any()
    assert builder.pad(2, 1).certain[:2].all()
    chunk = builder.pad(1, 6, certain=True)
    assert (chunk.num_rows, chunk.num_tokens, chunk.num_logits) == (1, 6, 1)
    assert chunk.certain[0] and chunk.row_start[:2].tolist() == [0, 6]
    drawn = SEQUENCES[2], 1, 1, True
    assert builder.fill([row(drawn)]).page_table[0].any()  # the table is written anew


def test_a_device_gets_all_buffers_in_one_copy():
    builder = BatchBuilder(max_rows=2, max_tokens=4, max_logits=4, max_pages=8)
    names = ["token_ids", "token_row", "page_table"]
    like = builder.fill([row((SEQUENCES[1], 2, 1, True))])
    copy = _DeviceCopy(like, [f.name for f in fields(StepBatch) if f.name[:4] != "num_"],
                       torch.device("cpu"))
    for name in names:
        assert getattr(copy.host, name).shape == getattr(like, name).shape
        getattr(copy.host, name).copy_(getattr(like, name))
    copy.start()
    for name in names:
        assert torch.equal(getattr(copy.batch, name), getattr(like, name))
