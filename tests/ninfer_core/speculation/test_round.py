"""A round is exact whatever is drafted, and a broken speculator costs nothing but its speed."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import Advance, Draft, DraftRequest, SamplingParams
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.sampling.verify import Drafted, Judge
from ninfer_core.speculation.counts import DraftCounts
from ninfer_core.speculation.round import Speculation

VOCAB = 16
LOGITS = torch.randn((64, VOCAB), generator=torch.Generator().manual_seed(2))


class Scripted:
    """Says what it is told to; notes what it hears."""

    def __init__(self, drafts, max_drafts=4):
        self.drafts, self.max_drafts, self.heard = drafts, max_drafts, []

    def propose(self, requests):
        if isinstance(self.drafts, Exception):
            raise self.drafts
        return [Draft(tuple(self.drafts[: each.limit])) for each in requests]

    def advance(self, steps):
        self.heard.append(("advance", [step.request_id for step in steps]))

    def release(self, request_id):
        self.heard.append(("release", request_id))


def row_at(params, position, mask=None):
    return lambda pending: SampleRow(params, position + len(pending), pending=pending, mask=mask)


def request(number, limit, mask=None):
    return DraftRequest(number, [0], limit, row_at(SamplingParams(), 1, mask), state=None)


def step(number):
    return Advance(number, [0, 1], 0, 1, 0, True, None, row_at(SamplingParams(), 1))


def drafts_of(speculation, *limits):
    found = speculation.propose([request(i, limit) for i, limit in enumerate(limits)])
    assert all(len(each.rows) == 1 + len(each.drafts) for each in found)
    return [list(each.drafts) for each in found]


def sampled(params, count):
    """What the model says at positions 0.. when row i of `LOGITS` follows i tokens."""
    verdicts = [
        Judge().verify(LOGITS[i : i + 1], [Drafted.cut(row_at(params, i))])
        for i in range(count)
    ]
    return [verdict.token for [verdict] in verdicts]


@given(
    wrong=st.lists(st.booleans(), max_size=6), temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 5),
)
def test_a_round_keeps_exactly_the_drafts_that_the_model_says(wrong, temperature, seed):
    params = SamplingParams(temperature=temperature, seed=seed)
    said = sampled(params, len(wrong) + 1)
    drafts = [(token + bad) % VOCAB for token, bad in zip(said, wrong, strict=False)]
    drafted = Drafted.cut(row_at(params, 0), drafts)
    [verdict] = Judge().verify(LOGITS[: len(drafts) + 1], [drafted])
    right = wrong.index(True) if True in wrong else len(wrong)
    assert verdict.accepted == right
    assert [*drafts[:right], verdict.token] == said[: right + 1]


def test_several_rows_are_judged_each_by_its_own_logits():
    params = SamplingParams()
    said = sampled(params, 5)
    drafted = [
        Drafted.cut(row_at(params, 0), said[:1]), Drafted.cut(row_at(params, 2), said[2:4])
    ]
    verdicts = Judge().verify(LOGITS[:5], drafted)
    assert [(v.accepted, v.token) for v in verdicts] == [(1, said[1]), (2, said[4])]


@pytest.mark.parametrize(("limit", "expected"), [(-1, []), (0, []), (2, [1, 2]), (4, [1, 2, 3, 4])])
def test_who_has_no_room_is_not_asked(limit, expected):
    speculation = Speculation(Scripted([1, 2, 3, 4, 5]), VOCAB)
    assert drafts_of(speculation, limit, 1, limit) == [expected, [1], expected]


def test_if_nobody_has_room_the_speculator_is_not_asked_at_all():
    speculation = Speculation(Scripted(RuntimeError("asked")), VOCAB)
    assert drafts_of(speculation, 0, -1) == [[], []]
    assert speculation.is_on


def test_without_a_speculator_there_are_no_drafts():
    speculation = Speculation(None, VOCAB)
    assert (speculation.width, speculation.is_on) == (1, False)
    assert drafts_of(speculation, 0) == [[]]


def test_drafts_end_where_a_mask_forbids_them():
    mask = torch.ones(VOCAB, dtype=torch.bool)
    mask[3] = False
    [found] = Speculation(Scripted([1, 3, 4]), VOCAB).propose([request(1, 4, mask)])
    assert found.drafts == (1,)


def test_steps_and_ends_are_told_of_what_is_known():
    script = Scripted([3, 4])
    speculation = Speculation(script, VOCAB)
    speculation.advance([])
    drafts_of(speculation, 2)
    speculation.advance([step(7)])
    for number in (0, 7, 7, 8):
        speculation.release(number)
    assert script.heard == [("advance", [7]), ("release", 0), ("release", 7)]


@pytest.mark.parametrize("drafts", [
    RuntimeError("lost"), [VOCAB], [-1], ["x"], None, [Draft()], [Draft((1,)), 2],
    [Draft((1,), torch.ones(2, VOCAB)), Draft()], [Draft((1,), torch.ones(1, 3)), Draft()],
    [Draft((1,) * 4), Draft()],
])
def test_a_broken_speculator_is_switched_off_once(drafts, caplog):
    script = Scripted(drafts)
    if isinstance(drafts, list) and isinstance(drafts[0], Draft):
        script.propose = lambda requests: drafts
    speculation = Speculation(script, VOCAB)
    assert drafts_of(speculation, 3, 3) == [[], []]
    assert drafts_of(speculation, 3, 3) == [[], []]
    speculation.advance([step(0)])
    speculation.release(0)
    assert caplog.text.count("switched off") == 1
    assert (speculation.width, speculation.is_on) == (5, False)  # buffers keep their size


def test_a_speculator_that_is_switched_off_is_told_to_release_all(caplog):
    script = Scripted([1])
    speculation = Speculation(script, VOCAB)
    speculation.advance([step(4), step(5)])
    script.propose = lambda requests: 1 / 0
    drafts_of(speculation, 2)
    assert sorted(script.heard[1:]) == [("release", 0), ("release", 4), ("release", 5)]


def test_a_fault_while_releasing_after_a_fault_is_nothing_new(caplog):
    script = Scripted(RuntimeError("lost"))
    script.release = lambda request_id: 1 / 0
    assert drafts_of(Speculation(script, VOCAB), 2) == [[]]
    assert caplog.text.count("switched off") == 1


def test_counts_add_up():
    counts = DraftCounts()
    for drafted, accepted in ((3, 3), (2, 0), (3, 1), (1, 1)):
        counts.add_round(drafted, accepted)
    expected = SimpleNamespace(rounds=4, drafted=9, accepted=5, accepted_at=[3, 1, 1], fallbacks=0)
    assert vars(expected) == {
        name: getattr(counts, name) for name in vars(expected)}
