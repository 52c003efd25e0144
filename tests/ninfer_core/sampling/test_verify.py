"""Acceptance of drafts: greedy, one-hot and drawn, and what follows them."""

import pytest
import torch
from attrs import evolve

from ninfer_core.api import SamplingParams
from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Judge, Verdict

judge = Judge()
VOCAB, DRAWS = 5, 10_000
P = torch.tensor([[0.05, 0.4, 0.1, 0.15, 0.3], [0.3, 0.05, 0.35, 0.2, 0.1]])
Q = torch.tensor([[0.3, 0.2, 0.1, 0.2, 0.2]])
WARM = SamplingParams(temperature=1.0)


def drafted(drafts, params=WARM, position=10, proposals=None, **facts):
    def row(pending):
        return SampleRow(params, position + len(pending), pending=pending, **facts)

    return Drafted.cut(row, drafts, proposals)


def greedy_logits(*tokens):
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCAB).float()


@pytest.mark.parametrize(
    ("drafts", "verdict"),
    [
        ((), Verdict(0, 1)), ((1,), Verdict(1, 2)), ((0,), Verdict(0, 1)), ((1, 2), Verdict(2, 3)),
        ((1, 0), Verdict(1, 2)), ((0, 2), Verdict(0, 1)), ((1, 2, 3), Verdict(3, 4)),
        ((1, 0, 3), Verdict(1, 2)), ((1, 2, 4), Verdict(2, 3)),
    ],
)
def test_greedy_keeps_the_longest_match(drafts, verdict):
    logits = greedy_logits(1, 2, 3, 4)[: len(drafts) + 1]
    for proposals in (None, torch.full((len(drafts), VOCAB), 0.2)):
        each = drafted(drafts, SamplingParams(), proposals=proposals)
        assert judge.verify(logits, [each]) == [verdict]


def test_sequences_are_judged_apart():
    logits = greedy_logits(1, 2, 3, 0, 4)
    several = [drafted((1, 2), SamplingParams()), drafted((), SamplingParams()),
               drafted((1,), SamplingParams())]
    expected = [Verdict(2, 3), Verdict(0, 0), Verdict(0, 4)]
    assert judge.verify(torch.cat((logits, logits[:1])), several) == expected


def chi_square(counts, probabilities):
    expected = probabilities.double() * counts.sum()
    return ((counts - expected) ** 2 / expected).sum()


LIMIT = 18.5  # 4 degrees of freedom: p = 0.001


def outcomes(drafts, proposals):
    """(verdict, drafted token) of ``DRAWS`` rounds with one draft, each with a seed of its own."""
    several = [
        drafted((draft,), evolve(WARM, seed=seed), proposals=proposals)
        for seed, draft in enumerate(drafts)
    ]
    return list(zip(judge.verify(P.log().repeat(len(several), 1), several), drafts, strict=True))


def first_and_second(rounds):
    """Counts of the token at the draft's position, and of the one after accepted drafts."""
    first = torch.tensor([draft if each.accepted else each.token for each, draft in rounds])
    second = torch.tensor([each.token for each, _ in rounds if each.accepted])
    return torch.bincount(first, minlength=VOCAB), torch.bincount(second, minlength=VOCAB)


@pytest.mark.parametrize("draft", [0, 1])  # unlikely, likely
def test_one_hot_drafts_keep_the_target_distribution(draft):
    rounds = outcomes([draft] * DRAWS, None)
    first, second = first_and_second(rounds)
    assert chi_square(first, P[0]) < LIMIT
    assert chi_square(second, P[1]) < LIMIT
    assert second.sum() == first[draft]


def drawn(weights, purpose=Purpose.PROPOSAL):
    """A draft of ``weights`` for every seed."""
    edges = weights.double().cumsum(0)
    numbers = [uniform(seed, 10, purpose) for seed in range(DRAWS)]
    return torch.searchsorted(edges, torch.tensor(numbers, dtype=torch.float64)).tolist()


def test_drawn_drafts_keep_the_target_distribution():
    rounds = outcomes(drawn(Q[0]), Q)
    first, second = first_and_second(rounds)
    assert chi_square(first, P[0]) < LIMIT
    assert chi_square(second, P[1]) < LIMIT
    accepted = second.sum() / DRAWS
    assert abs(accepted - torch.minimum(P[0], Q[0]).sum()) < 0.02


@pytest.mark.parametrize("bad", [1, slice(None)], ids=["of the draft", "all"])
def test_proposals_that_are_no_numbers_are_not_kept(bad):
    proposals = Q.clone()
    proposals[0, bad] = torch.nan
    logits = P.log()
    for seed in range(20):
        each = drafted((1,), evolve(WARM, seed=seed), proposals=proposals)
        [verdict] = judge.verify(logits, [each])
        assert verdict.accepted == 0 and 0 <= verdict.token < VOCAB


def test_drafts_of_the_target_itself_are_always_accepted():
    target = judge.probabilities(P[:1].log(), [SampleRow(WARM, 0)])
    rounds = outcomes(drawn(P[0]), target)
    assert all(verdict.accepted == 1 for verdict, _ in rounds)
    assert chi_square(first_and_second(rounds)[0], P[0]) < LIMIT


def test_a_filter_of_the_target_binds_drawn_drafts():
    top_2 = evolve(WARM, top_k=2)
    each = [
        drafted((draft,), evolve(top_2, seed=seed), proposals=Q)
        for seed, draft in enumerate(drawn(Q[0])[:2000])
    ]
    verdicts = judge.verify(P.log().repeat(len(each), 1), each)
    first, second = first_and_second(list(zip(verdicts, drawn(Q[0]), strict=False)))
    assert first.nonzero().flatten().tolist() == [1, 4]
    assert second.nonzero().flatten().tolist() == [0, 2]
    assert chi_square(first[[1, 4]], torch.tensor([4, 3]) / 7) < 10.8


def test_a_seed_gives_the_same_text_with_and_without_drafts():
    """The plain loop and rounds with drafts that are right, wrong or absent."""
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(9))
    params = evolve(WARM, seed=4, temperature=0.8, top_p=0.9)
    plain = [
        judge.sample(logits[i : i + 1], [SampleRow(params, i)]).item() for i in range(40)
    ]
    text, sizes = [], []
    while len(text) < 36:
        at, count, wrong = len(text), len(sizes) % 4, len(sizes) % 3
        drafts = tuple((plain[at + i] + (i == wrong)) % VOCAB for i in range(count))
        [verdict] = judge.verify(logits[at : at + count + 1], [drafted(drafts, params, at)])
        text += [*drafts[: verdict.accepted], verdict.token]
        sizes.append(verdict.accepted)
    assert text == plain[: len(text)]
    assert {0, 1, 2} <= set(sizes)


def test_penalties_of_a_row_include_the_drafts_before_it():
    """Greedy text under a presence penalty, drafted right, equals the plain loop."""
    logits = torch.tensor([[3.0, 2.9, 2.8, 0.0, 0.0]]).repeat(4, 1)
    params = SamplingParams(presence_penalty=1.0)
    history = TokenHistory(VOCAB, ())
    verdicts = judge.verify(logits[:3], [drafted((0, 1), params, history=history)])
    assert verdicts == [Verdict(2, 2)]


@pytest.mark.parametrize("proposals", [None, Q.repeat(2, 1)])
@pytest.mark.parametrize("params", [SamplingParams(), WARM])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_row_that_is_not_finite_ends_the_round_without_a_token(proposals, params, bad):
    logits = greedy_logits(1, 2, 3) * 100
    logits[bad, 0] = torch.nan
    [verdict] = judge.verify(logits, [drafted((1, 2), params, proposals=proposals)])
    assert verdict == Verdict(bad, INVALID)


def test_draws_of_a_round_have_purposes_of_their_own():
    """With q = p the draft is accepted; the bonus is the draw keyed BONUS at the next position."""
    for seed in range(50):
        params = evolve(WARM, seed=seed)
        target = judge.probabilities(P.log(), drafted((1,), params).rows)
        [verdict] = judge.verify(P.log(), [drafted((1,), params, proposals=target[:1])])
        edges = target[1].cumsum(0)
        assert verdict.accepted == 1
        assert verdict.token == sum(edges[:-1] <= uniform(seed, 11, Purpose.BONUS)).item()


@pytest.mark.parametrize(("drafts", "kept"), [((1, 2), 2), ((0, 2), 0), ((1, 0), 1), ((), 0)])
@pytest.mark.parametrize("proposals", [None, Q.repeat(2, 1)])
def test_drafts_end_before_the_first_that_a_mask_forbids(drafts, kept, proposals):
    mask = torch.tensor([False, True, True, True, True])
    found = drafted(drafts, mask=mask, proposals=proposals)
    assert found.drafts == drafts[:kept]
    assert [row.pending for row in found.rows] == [drafts[:i] for i in range(kept + 1)]
    assert (None if found.proposals is None else len(found.proposals)) == (
        kept if proposals is not None and kept else None)
