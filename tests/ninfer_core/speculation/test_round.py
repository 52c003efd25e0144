"""A round is exact whatever is drafted, and a broken speculator costs nothing but its speed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import SamplingParams
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.speculation.round import Speculation

VOCAB = 16
LOGITS = torch.randn((64, VOCAB), generator=torch.Generator().manual_seed(2))


class Scripted:
    """Says what it is told to; notes what it hears."""

    def __init__(self, drafts, max_drafts=4):
        self.drafts, self.max_drafts, self.heard = drafts, max_drafts, []

    def propose(self, request_id, tokens, limit):
        if isinstance(self.drafts, Exception):
            raise self.drafts
        return self.drafts[:limit]

    def observe(self, request_id, drafted, accepted):
        self.heard.append(("observe", request_id, list(drafted), accepted))

    def release(self, request_id):
        self.heard.append(("release", request_id))


def sampled(params, count):
    """What the model says at positions 0.. when row i of `LOGITS` follows i tokens."""
    speculation = Speculation(None, VOCAB)
    verdicts = [speculation.verify(LOGITS[i : i + 1], [SampleRow(params, i)], [[]])
                for i in range(count)]
    return [verdict.token for [verdict] in verdicts]


@given(
    wrong=st.lists(st.booleans(), max_size=6), temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 5),
)
def test_a_round_keeps_exactly_the_drafts_that_the_model_says(wrong, temperature, seed):
    params = SamplingParams(temperature=temperature, seed=seed)
    said = sampled(params, len(wrong) + 1)
    drafts = [(token + bad) % VOCAB for token, bad in zip(said, wrong, strict=False)]
    logits = LOGITS[: len(drafts) + 1]
    [verdict] = Speculation(None, VOCAB).verify(logits, [SampleRow(params, 0)], [drafts])
    right = wrong.index(True) if True in wrong else len(wrong)
    assert verdict.accepted == right
    assert [*drafts[:right], verdict.token] == said[: right + 1]


def test_several_rows_are_judged_each_by_its_own_logits():
    params = SamplingParams()
    said = sampled(params, 5)
    rows = [SampleRow(params, 0), SampleRow(params, 2)]
    verdicts = Speculation(None, VOCAB).verify(LOGITS[:5], rows, [said[:1], said[2:4]])
    assert [(v.accepted, v.token) for v in verdicts] == [(1, said[1]), (2, said[4])]


@pytest.mark.parametrize(("room", "expected"), [(-1, []), (0, []), (2, [1, 2]), (9, [1, 2, 3, 4])])
def test_there_are_never_more_drafts_than_room(room, expected):
    assert Speculation(Scripted([1, 2, 3, 4, 5]), VOCAB).propose(7, [0], room) == expected


def test_without_a_speculator_there_are_no_drafts():
    speculation = Speculation(None, VOCAB)
    assert (speculation.width, speculation.propose(1, [0], 5)) == (1, [])


def test_outcomes_and_ends_are_told():
    script = Scripted([3, 4])
    speculation = Speculation(script, VOCAB)
    speculation.observe(1, speculation.propose(1, [0], 9), 1)
    speculation.release(1)
    speculation.release(2)
    assert script.heard == [("observe", 1, [3, 4], 1), ("release", 1)]


@pytest.mark.parametrize("drafts", [RuntimeError("lost"), [VOCAB], [-1], ["x"], None])
def test_a_broken_speculator_is_switched_off_once(drafts, caplog):
    speculation = Speculation(Scripted(drafts), VOCAB)
    assert speculation.propose(1, [0], 3) == []
    assert speculation.propose(1, [0], 3) == []
    speculation.release(1)
    assert caplog.text.count("switched off") == 1
    assert speculation.width == 5, "buffers keep the size they were made for"


def test_too_many_drafts_switch_a_speculator_off(caplog):
    class Greedy(Scripted):
        def propose(self, request_id, tokens, limit):
            return [1] * (limit + 1)

    assert Speculation(Greedy(None), VOCAB).propose(1, [0], 3) == []
    assert "more than 3" in caplog.text
