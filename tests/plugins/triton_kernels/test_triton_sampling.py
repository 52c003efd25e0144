"""Draws and verdicts beside the reference: the same tokens, up to what FP32 rounds."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from ninfer_core.api import KernelRequest, SamplingParams
from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import LateMask, SampleRow, TokenHistory
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Judge, Verdict
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures import engines
from ninfer_triton_kernels.accepts import accept_sampling
from ninfer_triton_kernels.bindings.sampling import DeviceJudge

VOCAB = 90
WARM = SamplingParams(temperature=0.8, seed=5)
KINDS = {
    "greedy": SamplingParams(),
    "any": WARM,
    "min-p": evolve(WARM, min_p=0.2),
    "top-k": evolve(WARM, top_k=8),
    "one": evolve(WARM, top_k=1),
    "all-filters": evolve(WARM, top_k=6, top_p=0.7, min_p=0.05, temperature=1.3),
    "no-mass": evolve(WARM, top_k=3, top_p=0.0),
    "penalties": evolve(WARM, top_k=7, presence_penalty=0.9, frequency_penalty=-0.3,
                        repetition_penalty=1.4),
    "any-penalties": evolve(WARM, presence_penalty=0.9, repetition_penalty=0.7),
    "top-p": evolve(WARM, top_p=0.6),
    "top-p-penalties": evolve(WARM, top_p=0.7, min_p=0.01, frequency_penalty=0.5),
    "top-p-most": evolve(WARM, top_p=0.999, temperature=2.0),
    "many": evolve(WARM, top_k=70),
}


@pytest.fixture
def judges(bind):
    """Ours and the reference."""
    kernel, reference = bind("sampling", {"vocab_size": VOCAB})
    return kernel, reference


@pytest.fixture
def some_logits(device):
    """fp32 on the device, a view of a wider table; of multiples of an odd fraction, so that ties
    are frequent but no filter's bound falls on a rounding error."""

    def some(count, seed=1):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randint(-8, 9, (count, VOCAB + 7), generator=generator)
        return (coarse * 0.3711).to(device)[:, :VOCAB]

    return some


def history(device, *, prompt=(1, 3, 80), tokens=(3, 3, 7)):
    made = TokenHistory(VOCAB, prompt, device)
    for token in tokens:
        made.append(token)
    return made


def row_of(params, position, device, *, mask=None, pending=()):
    """With a history where there are penalties."""
    has = params.presence_penalty or params.repetition_penalty != 1
    return SampleRow(params, position, Purpose.TOKEN, history(device) if has else None, pending,
                     mask)


def masks():
    """None, one that allows a third, and one that is asked for later."""
    some = torch.arange(VOCAB) % 3 == 1
    return None, some, LateMask(lambda: some.logical_not())


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_references(kind, judges, some_logits, device):
    rows = [
        row_of(KINDS[kind], position, device, mask=masks()[position % 3],
               pending=(7, 9, 7)[: position % 4])
        for position in range(5)
    ]
    logits = some_logits(5)
    before = logits.clone()
    tokens, expected = (judge.sample(logits, rows) for judge in judges)
    assert tokens.tolist() == expected.tolist()
    assert logits.equal(before)


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_of_single_rows_are_the_references(kind, judges, some_logits, device):
    several = [Drafted((row_of(evolve(KINDS[kind], seed=i), i, device, mask=masks()[i % 2]),), ())
               for i in range(8)]
    logits = some_logits(8)
    logits[5, 7] = torch.nan
    found, expected = (judge.verify(logits, several) for judge in judges)
    assert found == expected
    assert found[5].token == INVALID


@pytest.mark.parametrize("kind, asked", [("top-p", 0), ("top-p-most", 4)])
def test_the_reference_draws_only_what_few_choices_do_not_hold(
    kind, asked, judges, some_logits, monkeypatch
):
    several = [Drafted((SampleRow(evolve(KINDS[kind], seed=i), i),), ()) for i in range(4)]
    expected, drawn = judges[1].verify(some_logits(4), several), []
    sample = Judge.sample
    monkeypatch.setattr(
        Judge, "sample", lambda *args: drawn.extend(args[2]) or sample(*args))
    assert judges[0].verify(some_logits(4), several) == expected
    assert len(drawn) == asked


@pytest.mark.parametrize("mask", [
    (torch.arange(2 * VOCAB) % 6 == 2)[::2], torch.zeros(1, dtype=torch.bool).expand(VOCAB)],
    ids=["every other", "expanded"])
def test_masks_may_lie_in_any_way(mask, judges, some_logits):
    rows = [SampleRow(SamplingParams(temperature=1, seed=i), i, mask=mask) for i in range(4)]
    own, expected = (judge.sample(some_logits(4), rows).tolist() for judge in judges)
    assert own == expected


@pytest.mark.parametrize("mask", [
    torch.ones(VOCAB - 1, dtype=torch.bool), torch.ones(VOCAB + 1, dtype=torch.bool),
    torch.ones(VOCAB), torch.ones(1, VOCAB, dtype=torch.bool)], ids=lambda mask: str(mask.shape))
def test_a_mask_of_another_kind_is_refused(mask, judges, some_logits):
    with pytest.raises(ValueError, match="a mask is"):
        judges[0].sample(some_logits(1), [SampleRow(SamplingParams(), 0, mask=mask)])


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_references(kind, judges, some_logits, device):
    rows = [row_of(KINDS[kind], i, device, mask=masks()[i % 3]) for i in range(4)]
    mine, theirs = (judge.probabilities(some_logits(4), rows) for judge in judges)
    assert mine.dtype == torch.float64
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-9)
    assert ((mine > 0) == (theirs > 0)).all()


@pytest.mark.parametrize("params", [
    evolve(WARM, top_k=8, repetition_penalty=1.5), evolve(WARM, top_k=8, frequency_penalty=1.0)])
def test_penalties_see_the_drafts_before_a_row(params, judges, some_logits, device):
    logits = some_logits(2)
    logits[:, 9:12] = 4.0  # not in the history
    rows = [SampleRow(params, i, history=history(device), pending=pending)
            for i, pending in enumerate(((9, 11, 9), ()))]
    mine, theirs = (judge.probabilities(logits, rows) for judge in judges)
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-9)
    assert not torch.allclose(mine[0], mine[1], rtol=1e-2)


def test_a_row_draws_alone_what_it_draws_in_company(judges, some_logits, device):
    """All kinds together, those that are left to the reference among them."""
    rows = [row_of(params, i, device, mask=masks()[i % 3])
            for i, params in enumerate(KINDS.values())]
    logits = some_logits(len(rows))
    together = judges[0].sample(logits, rows)
    alone = [judges[0].sample(logits[i : i + 1], [row]) for i, row in enumerate(rows)]
    assert together.equal(torch.cat(alone))
    assert together.equal(judges[1].sample(logits, rows))
    shares = judges[0].probabilities(logits, rows)
    for i, row in enumerate(rows):
        assert shares[i : i + 1].equal(judges[0].probabilities(logits[i : i + 1], [row]))


def test_the_likeliest_are_what_free_greedy_rows_draw(judges, some_logits, device):
    logits = some_logits(5)
    logits[1, 7] = torch.nan
    logits[2, 50] = torch.inf
    logits[3] = -torch.inf
    logits[4, :] = -0.0
    logits[4, 3] = 0.0
    expected = judges[1].sample(logits, [SampleRow(SamplingParams(), i) for i in range(5)])
    assert judges[0].likeliest(logits).equal(expected)
    assert expected[1:].tolist() == [INVALID, INVALID, INVALID, 0]
    assert judges[1].likeliest(logits) is None


def test_the_likeliest_of_a_shortlist_are_those_of_the_vocabulary(judges, some_logits, device):
    """Columns in any order, ties to the lower token, and columns of no token."""
    names = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2)).to(device)[:70]
    logits = some_logits(6)[:, :70]
    logits[1, 7] = torch.nan
    logits[2], logits[2, 50] = -torch.inf, 1.0
    logits[3, 50] = 99.0
    names[50] = -1
    whole = logits.new_full((6, VOCAB), -torch.inf)
    whole[:, names[names >= 0]] = logits[:, names >= 0]
    made = judges[0].likeliest(logits, names)
    assert made.equal(judges[0].likeliest(whole))
    assert made[1:3].tolist() == [INVALID, INVALID]
    inputs = torch.full((3, 6), 7, device=device)
    assert judges[0].likeliest(logits, names, out=inputs[1], least=0) is not None
    assert inputs[1].equal(made.clamp(min=0))
    assert inputs[::2].eq(7).all()
    assert judges[1].likeliest(logits, names) is None


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["greedy", "any", "top-k", "top-p"])
def test_a_row_that_is_not_finite_fails_alone(kind, bad, judges, some_logits):
    logits = some_logits(3)
    logits[1, 44] = bad
    rows = [SampleRow(KINDS[kind], i) for i in range(3)]
    tokens = judges[0].sample(logits, rows)
    assert tokens[1] == INVALID
    assert tokens.equal(judges[1].sample(logits, rows))
    assert judges[0].probabilities(logits, rows)[1].eq(0).all()


@pytest.mark.parametrize("kind", ["greedy", "any", "top-k"])
def test_nothing_is_drawn_where_nothing_may_follow(kind, judges, some_logits):
    def fail():
        raise ValueError("a dead end")

    barred = [torch.zeros(VOCAB, dtype=torch.bool), LateMask(fail)]
    rows = [SampleRow(KINDS[kind], i, mask=mask) for i, mask in enumerate((*barred, None))]
    tokens = judges[0].sample(some_logits(3), rows)
    assert tokens.tolist() == judges[1].sample(some_logits(3), rows).tolist()
    assert tokens[:2].tolist() == [INVALID, INVALID]


@pytest.mark.parametrize("params", [WARM, evolve(WARM, top_k=7, top_p=0.9)])
def test_draws_are_the_inverse_distribution_function(params, judges, some_logits):
    """Of the FP64 probabilities, in the order of ids or of ranks, at every number."""
    logits = some_logits(1)[:, :9].repeat(24, 1)
    rows = [SampleRow(params, position) for position in range(24)]
    shares = judges[1].probabilities(logits[:1].cpu(), rows[:1])[0]
    ids = torch.arange(9)
    if params.top_k:
        ids = torch.tensor(sorted(range(9), key=lambda i: (-float(logits[0, i]), i)))
    edges = shares[ids].cumsum(0)
    for row, token in zip(rows, judges[0].sample(logits, rows).tolist(), strict=True):
        number = uniform(params.seed, row.position, Purpose.TOKEN)
        assert token == int(ids[int((edges <= number).sum())])


@pytest.mark.parametrize("kinds", [
    ["greedy"], ["any", "top-k"], ["penalties", "top-p", "all-filters"]])
def test_drafts_are_the_references(kinds, judges, some_logits, device):
    """Drawn by ids, whatever the rows' ranks are; not a number where there is none."""
    rows = [row_of(KINDS[kind], i, device, mask=masks()[i % 2])
            for i, kind in enumerate(kinds * 2)]
    logits = some_logits(len(rows))
    logits[-1, 4] = torch.nan
    (mine, shares), (theirs, expected) = (judge.propose(logits, rows) for judge in judges)
    assert mine.tolist() == theirs.tolist()
    assert mine[-1] == INVALID
    assert (shares is None) == (expected is None) == (kinds == ["greedy"])
    if shares is not None:
        assert torch.allclose(shares, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("most", [1, 3, 15])
def test_greedy_drafts_are_kept_as_by_the_reference(most, judges, device):
    """Also where the model says no token; drafts are columns of what the step has read."""
    generator = torch.Generator().manual_seed(most)
    tokens = torch.randint(-1, 2, (40, most + 1), generator=generator)
    inputs = torch.randint(0, 2, (40, most + 1), generator=generator)
    tokens[0, :-1] = inputs[0, 1:]
    tokens, inputs = tokens.to(device), inputs.to(device)
    found, expected = (judge.accept(tokens, inputs[:, 1:]) for judge in judges)
    assert found.equal(expected)
    assert found[0] == most and found.min() == 0


def drafted(params, drafts, proposals=None, *, position=10, **facts):
    return Drafted.cut(
        lambda pending: SampleRow(params, position + len(pending), pending=pending, **facts),
        drafts, proposals)


def some_proposals(count, device, seed=3):
    weights = torch.rand(count, VOCAB, generator=torch.Generator().manual_seed(seed)) ** 8
    return (weights / weights.sum(-1, keepdim=True)).double().to(device)


@pytest.mark.parametrize("params", [
    WARM, evolve(WARM, top_p=0.8), evolve(WARM, top_k=9, min_p=0.1)])
def test_drawn_drafts_are_judged_as_by_the_reference(params, judges, some_logits, device):
    """Sequences of other numbers of drafts, drawn, looked up, greedy or without any."""
    several, target = [], judges[1]
    for seed in range(10):
        own, count = evolve(params, seed=seed), seed % 4
        proposals = some_proposals(count, device, seed) if count else None
        if proposals is not None and seed % 3 == 0:  # as good as the model
            rows = drafted(own, [1] * count).rows[:count]
            logits = some_logits(64)[4 * seed : 4 * seed + count]
            proposals = target.probabilities(logits, rows)
        drafts = [] if proposals is None else proposals.argmax(-1).tolist()
        several.append(drafted(own, drafts, proposals if seed % 5 else None))
    several[6] = drafted(SamplingParams(), (3, 4, 5), some_proposals(3, device))
    logits = torch.cat([
        some_logits(64)[4 * seed : 4 * seed + len(each.rows)]
        for seed, each in enumerate(several)])
    found, expected = (judge.verify(logits, several) for judge in judges)
    assert found == expected
    assert {each.accepted for each in found} >= {0, 1}
    alone = judges[0].verify(logits[: len(several[0].rows)], several[:1])
    assert alone == expected[:1]


def test_proposals_may_lie_in_any_way(judges, some_logits, device):
    several = [drafted(evolve(WARM, seed=seed), (5, 6), some_proposals(2, device, seed).T.clone().T)
               for seed in range(6)]
    found, expected = (judge.verify(some_logits(18), several) for judge in judges)
    assert found == expected


@pytest.mark.parametrize("bad", [(0, 5), (0,), slice(None)], ids=["some", "a row", "all"])
def test_proposals_that_are_no_numbers_change_no_answer(bad, judges, some_logits, device):
    """They are drawn from what the model says: no draft of theirs is kept."""
    for seed in range(6):
        proposals = some_proposals(2, device, seed)
        proposals[bad] = torch.nan
        several = [drafted(evolve(WARM, seed=seed), (5, 6), proposals)]
        found, expected = (judge.verify(some_logits(3), several) for judge in judges)
        assert found == expected
        assert found[0].accepted == 0 and found[0].token >= 0


def test_what_neither_would_draw_is_followed_by_what_the_model_draws(judges, some_logits):
    """Where p is q, nothing is left of p - q."""
    for seed in range(6):
        params, verdicts = evolve(WARM, top_k=5, seed=seed), []
        logits = some_logits(2, seed)
        for judge in judges:
            shares = judge.probabilities(logits[:1], [SampleRow(params, 10)])
            each = drafted(params, (int(shares[0].argmin()),), shares)
            verdicts += judge.verify(logits, [each])
        assert verdicts[0] == verdicts[1]
        assert verdicts[0].accepted == 0 and shares[0, verdicts[0].token] > 0


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_round_ends_where_logits_are_not_finite(bad, judges, some_logits, device):
    logits = some_logits(3)
    proposals = judges[1].probabilities(logits[:2], drafted(WARM, (1, 2)).rows[:2])
    logits[bad, 0] = torch.nan
    each = drafted(WARM, tuple(proposals.argmax(-1).tolist()), proposals)
    assert judges[0].verify(logits, [each]) == [Verdict(bad, INVALID)]


def test_rounds_of_free_greedy_rows_take_what_the_step_has_made(judges, some_logits):
    logits = some_logits(4)
    made = judges[0].likeliest(logits)
    first, second, *_ = made.tolist()
    rounds = [drafted(SamplingParams(), (first, second)), drafted(SamplingParams(), ())]
    assert judges[0].verify(logits, rounds, made) == judges[1].verify(logits, rounds)
    assert judges[0].verify(logits, rounds, made.flip(0)) != judges[1].verify(logits, rounds)
    bound = [drafted(SamplingParams(), (), mask=torch.arange(VOCAB) == 9),
             *(drafted(WARM, ()) for _ in range(3))]
    assert judges[0].verify(logits, bound, made.flip(0)) == judges[1].verify(logits, bound)


def test_a_vocabulary_can_be_too_large():
    request = KernelRequest("sampling", "cuda", "float32", 90, sizes={"vocab_size": 1 << 21})
    assert "2097152" in (accept_sampling(request) or "")


class Drafting(MtpSpeculator):
    """With our judge."""

    def __init__(self, context):
        super().__init__(evolve(context, judge=DeviceJudge()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the model of this engine is on the CPU")
@pytest.mark.parametrize(("params", "max_tokens"), [
    ((SamplingParams(), evolve(WARM, top_k=9, top_p=0.9), evolve(WARM, repetition_penalty=2)), 6),
    ((SamplingParams(), SamplingParams()), 25),
    ((WARM, evolve(WARM, top_k=9, top_p=0.9)), 6), ((evolve(WARM, top_p=0.7), WARM), 6),
])
def test_engines_give_the_same_answers(params, max_tokens):
    """Greedy and drawn requests, with and without drafts of the model's own predictor; what needs
    not the host is launched ahead of it."""
    requests = [engines.ask(5 + i, first=i, max_tokens=max_tokens, ignore_eos=True, sampling=each)
                for i, each in enumerate(params)]
    outputs = []
    for speculator, judge in (
        (None, None), (None, DeviceJudge()), (MtpSpeculator, None), (Drafting, DeviceJudge())
    ):
        parts = engines.build(speculator=speculator, judge=judge)
        outputs.append([events[-1].token_ids for events in engines.serve(parts, *requests)])
    assert outputs[0] == outputs[1]
    assert outputs[2] == outputs[3]
