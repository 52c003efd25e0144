"""Rounds with the model's own predictor: what it reads is always what was committed, and what it
drafts changes no greedy answer."""

from collections import Counter

import pytest
import torch
from attrs import evolve

from ninfer_core.api import SamplingParams
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures.judges import Prompt

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.7, seed=7)


def requests_of(kit, sampling=GREEDY, **fields):
    return [
        kit.ask(length, first=i, max_tokens=20 + i, ignore_eos=True, sampling=sampling, **fields)
        for i, length in enumerate((1, 5, 62, 63, 64, 65, 130, 200))
    ]


def mtp(kit, errs=lambda position: False, **options):
    parts = kit.build(speculator=MtpSpeculator, **options)
    parts.model.predictor.errs = errs
    return parts


class AtOnce(MtpSpeculator):
    """Counts rounds of which the host sees drafts when all are there; by how many requests they are
    for, those that are made behind a step it has not seen, and those of them that are taken by a
    round that it launches when it has."""

    def __init__(self, context):
        super().__init__(evolve(context, judge=Prompt()))
        self.rounds, self.ahead, self.used = 0, Counter(), Counter()

    def _draft_at_once(self, chains):
        self.rounds += 1
        return super()._draft_at_once(chains)

    def draft_ahead(self, rows, tokens, accepted):
        self.ahead[len(rows)] += 1
        return super().draft_ahead(rows, tokens, accepted)

    def drafted_ahead(self, requests):
        found = super().drafted_ahead(requests)
        self.used[0 if found is None else len(requests)] += 1
        return found


def run(kit, parts, requests):
    """Outputs and usages; the speculator must not have failed, nor hold anything."""
    events = kit.serve(parts, *requests)
    assert parts.engine._speculation.is_on
    assert not parts.speculator._held
    return [list(each[-1].token_ids) for each in events], [each[-1].usage for each in events]


@pytest.mark.parametrize("drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("errs", [
    lambda position: False, lambda position: True, lambda position: position % 2,
    lambda position: position * position % 7 > 3, lambda position: position % 11 == 0,
])
def test_greedy_answers_are_the_models(kit, drafts, errs):
    """Eight together, each with other numbers of accepted drafts."""
    requests = requests_of(kit)
    outputs, _ = run(kit, mtp(kit, errs, drafts=drafts), requests)
    assert outputs == [kit.expected(each, each.max_tokens) for each in requests]


@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_a_perfect_predictor_is_always_right(kit, drafts):
    """So it must have read the right tokens beside the right hidden states: in prompts of any
    chunks, after rounds of any length, and in its own drafts."""
    requests = requests_of(kit)
    for usage in run(kit, mtp(kit, drafts=drafts), requests)[1]:
        assert usage.accepted_tokens == usage.drafted_tokens > 0
        assert usage.rounds == -(-usage.drafted_tokens // drafts)
        steps = usage.rounds + usage.fallback_steps
        assert usage.output_tokens == 1 + steps + usage.accepted_tokens


@pytest.mark.parametrize("sampling", [
    SamplingParams(presence_penalty=1.0, frequency_penalty=0.7, repetition_penalty=1.3),
    evolve(WARM, top_k=5, min_p=0.1), evolve(WARM, top_p=0.8, presence_penalty=1.0), WARM,
    SamplingParams(temperature=1.0, repetition_penalty=1.5, seed=3),
])
def test_drafts_are_drawn_as_the_models_tokens_are(kit, sampling):
    """Where the predictor is as good as the model, q is p, and every draft is accepted."""
    for usage in run(kit, mtp(kit), requests_of(kit, sampling))[1]:
        assert usage.accepted_tokens == usage.drafted_tokens > 0


@pytest.mark.parametrize("errs", [lambda position: False, lambda position: position % 3 == 0])
def test_a_seed_gives_the_same_text_whatever_runs_beside_it(kit, errs):
    requests = requests_of(kit, WARM)
    alone = [run(kit, mtp(kit, errs), [each])[0][0] for each in requests]
    assert run(kit, mtp(kit, errs), requests)[0] == alone
    assert run(kit, mtp(kit, errs), requests)[0] == alone
    other = run(kit, mtp(kit, errs), requests_of(kit, evolve(WARM, seed=8)))[0]
    assert all(a != b for a, b in zip(alone, other, strict=True))


def test_near_the_end_of_the_context_there_are_fewer_drafts_and_then_none(kit):
    """A context of 64, a prompt of 58, 3 drafts: the last token is drawn from the last place."""
    request = kit.ask(58, max_tokens=100, ignore_eos=True)
    parts = mtp(kit, max_context=64, num_pages=1)
    [output], [usage] = run(kit, parts, [request])
    assert output == kit.expected(request, 6)
    assert (usage.rounds, usage.drafted_tokens, usage.accepted_at) == (1, 3, (1, 1, 1))
    assert usage.fallback_steps == 1


@pytest.mark.parametrize("length", [1, 64, 65, 70, 128, 129])
def test_a_prompt_that_nothing_follows_costs_no_drafts(kit, length):
    """Its last position is not the predictor's before a token follows, so neither is its state of
    use to others."""
    parts = mtp(kit)
    read, request = kit.ask(length, max_tokens=0), kit.ask(length + 9, ignore_eos=True)
    [[*_, end]] = kit.serve(parts, read)
    assert (end.reason, end.token_ids) == ("output-limit", ())
    [output], [usage] = run(kit, parts, [request])
    assert output == kit.expected(request, request.max_tokens)
    assert usage.accepted_tokens == usage.drafted_tokens > 0


def test_two_greedy_and_two_sampled_requests_draft_together(kit):
    requests = [
        evolve(each, sampling=sampling)
        for each, sampling in zip(requests_of(kit)[:4], (GREEDY, WARM) * 2, strict=True)
    ]
    outputs, usages = run(kit, mtp(kit), requests)
    for i in (0, 2):
        assert outputs[i] == kit.expected(requests[i], requests[i].max_tokens)
    assert all(usage.accepted_tokens == usage.drafted_tokens > 0 for usage in usages)


def test_usage_and_engine_count_rounds_by_position(kit):
    requests = requests_of(kit)[:3]
    parts = mtp(kit, lambda position: position % 4 == 0)
    _, usages = run(kit, parts, requests)
    for usage in usages:
        assert sum(usage.accepted_at) == usage.accepted_tokens < usage.drafted_tokens
        assert usage.accepted_at == tuple(sorted(usage.accepted_at, reverse=True))
        assert usage.accepted_at[0] <= usage.rounds
    total = parts.engine.drafts
    assert total.rounds == sum(usage.rounds for usage in usages)
    assert total.accepted == sum(usage.accepted_tokens for usage in usages)
    assert total.drafted == sum(usage.drafted_tokens for usage in usages)
    assert total.fallbacks == sum(usage.fallback_steps for usage in usages)
    assert total.accepted_at == [sum(each) for each in zip(*(u.accepted_at for u in usages),
                                                          strict=True)]


@pytest.mark.parametrize("ids", [range(1, 48, 2), [*range(2, 20), 60, 61]])
def test_a_head_over_fewer_tokens_drafts_those_only(kit, ids):
    """Also where the head has tokens that the tokenizer does not know."""
    shortlist, requests = torch.tensor(ids), requests_of(kit)
    parts = kit.build(speculator=MtpSpeculator)
    assert parts.model.predictor.token_ids is None
    parts.model.predictor.token_ids = shortlist
    parts.speculator._vocabulary.__init__(shortlist, kit.VOCAB)
    drafted = []
    cut = parts.engine._speculation.propose
    parts.engine._speculation.propose = lambda asked: drafted.append(cut(asked)) or drafted[-1]
    outputs, usages = run(kit, parts, requests)
    assert outputs == [kit.expected(each, each.max_tokens) for each in requests]
    proposed = {token for each in drafted for row in each for token in row.drafts}
    assert proposed and proposed <= {*ids} & {*range(kit.VOCAB)}
    assert sum(usage.accepted_tokens for usage in usages) > 0


def test_a_failing_predictor_costs_no_request(kit, caplog):
    parts = mtp(kit)
    steps = iter(range(1000))

    def fail(batch):
        if next(steps) == 12:
            raise RuntimeError("kernel launch failed")

    parts.model.predictor.before = fail
    requests = requests_of(kit)
    events = kit.serve(parts, *requests)
    for request, each in zip(requests, events, strict=True):
        assert list(each[-1].token_ids) == kit.expected(request, request.max_tokens)
    assert caplog.text.count("switched off") == 1


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("errs", [lambda position: False, lambda position: position % 3 == 0])
def test_drafts_made_at_once_are_those_made_one_by_one(kit, drafts, errs):
    """Greedy and drawn; also beside requests that are penalised or near their end, whose drafts are
    made one by one. Rounds take what the step has made."""
    greedy, warm = requests_of(kit), requests_of(kit, WARM)
    penalised = evolve(requests_of(kit, evolve(GREEDY, presence_penalty=1.0))[0], max_tokens=9)
    for requests in (greedy, warm, [*greedy[:3], *warm[3:6], penalised]):
        one_by_one = run(kit, mtp(kit, errs, drafts=drafts), requests)
        parts = kit.build(speculator=AtOnce, drafts=drafts)
        parts.model.predictor.errs = errs
        assert run(kit, parts, requests) == one_by_one
        assert parts.speculator.rounds > 5 and not parts.speculator.ahead


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_how_drafts_of_one_are_drawn_is_nothing_to_the_others(kit, budget):
    """A mask that begins within the round cuts drafts that were made at once, and not those that
    were made one by one: so it is always the same of both."""
    prompt = evolve(kit.ask(20).prompt, reasoning_open=True)
    request = kit.ask(prompt=prompt, max_tokens=25, ignore_eos=True, sampling=WARM,
                      thinking_budget=budget)
    penalised = kit.ask(9, max_tokens=30, ignore_eos=True,
                        sampling=SamplingParams(presence_penalty=1.0))
    [alone], [usage] = run(kit, mtp(kit, judge=Prompt()), [request])
    outputs, usages = run(kit, mtp(kit, judge=Prompt()), [penalised, request])
    assert (outputs[1], usages[1]) == (alone, usage)


@pytest.mark.parametrize("drafts", [1, 2, 5])
@pytest.mark.parametrize("errs", [
    lambda position: False, lambda position: True, lambda position: position % 3 == 0])
def test_drafts_made_behind_a_step_are_those_made_one_by_one(kit, drafts, errs):
    """Also where requests are drawn, penalised, scored or near their ends, with which none are."""
    greedy = [evolve(each, max_tokens=50) for each in requests_of(kit)]
    warm = requests_of(kit, WARM)
    penalised = evolve(requests_of(kit, evolve(GREEDY, presence_penalty=1.0))[0], max_tokens=9)
    scored = evolve(greedy[1], logprobs=2, max_tokens=4)
    for requests in (greedy, warm, [*greedy[:3], *warm[3:6], penalised], [*greedy[2:5], scored]):
        one_by_one = run(kit, mtp(kit, errs, drafts=drafts), requests)
        parts = kit.build(speculator=AtOnce, drafts=drafts, judge=Prompt())
        parts.model.predictor.errs = errs
        assert run(kit, parts, requests) == one_by_one
        assert bool(parts.speculator.ahead) == (requests is not warm)


def test_drafts_made_behind_a_step_need_their_pages(kit):
    """With a pool as small as it can be, they are made where they have room."""
    requests = [evolve(each, max_tokens=40) for each in requests_of(kit)[:3]]
    pages = sum(-(-(len(each.prompt.token_ids) + each.max_tokens) // 64) for each in requests)
    parts = kit.build(speculator=AtOnce, judge=Prompt(), num_pages=pages)
    outputs, _ = run(kit, parts, requests)
    assert outputs == [kit.expected(each, each.max_tokens) for each in requests]
    assert parts.speculator.ahead[3] > 2


def test_a_round_takes_drafts_that_were_made_behind_the_last(kit):
    """Where it is launched when the host has seen that: while a prompt is read, for one."""
    parts, request = kit.build(speculator=AtOnce, judge=Prompt()), kit.ask(9, max_tokens=60)
    requests = [evolve(request, ignore_eos=True), kit.ask(200, first=2, max_tokens=0)]
    outputs, _ = run(kit, parts, requests)
    assert outputs[0] == kit.expected(requests[0], 60)
    assert parts.speculator.used[1] > 1


def test_what_was_read_behind_a_step_is_read_again_from_a_state_before_it(kit):
    """A chunk begins where the step did."""
    request, events = kit.ask(70, max_tokens=40, ignore_eos=True), []
    parts = kit.build(speculator=AtOnce, judge=Prompt())
    number = parts.engine.submit(request, events.append)
    sequence = parts.engine._sequences[number]
    for _ in range(5):
        parts.engine.step()
    parts.engine.pause(number)
    parts.engine.step()
    assert parts.speculator.ahead.total() > 1
    parts.engine.pause(number)
    cache = parts.engine.cache
    cache.discard(max(cache.points, key=lambda point: point.num_tokens))
    while parts.engine.step():
        if sequence.frontier:
            parts.model.predictor.verify(sequence.state, sequence.tokens)
    assert events[-1].reuse.num_pauses == 2
    assert list(events[-1].token_ids) == kit.expected(request, 40)


def test_drafts_made_at_once_end_where_logits_are_not_finite(kit):
    parts = kit.build(speculator=AtOnce)
    predictor, steps = parts.model.predictor, iter(range(1000))
    forward = predictor.forward

    def failing(batch, hidden):
        logits, hidden = forward(batch, hidden)
        return torch.full_like(logits, torch.nan) if next(steps) % 4 == 3 else logits, hidden

    predictor.forward = failing
    requests = requests_of(kit)[:2]
    outputs, usages = run(kit, parts, requests)
    assert outputs == [kit.expected(each, each.max_tokens) for each in requests]
    assert any(usage.drafted_tokens < 3 * usage.rounds for usage in usages)


class TestAlone:
    """The speculator beside an engine that stands still."""

    def prepared(self, kit, parts):
        """A request at its first round."""
        request_id = parts.engine.submit(kit.ask(70, ignore_eos=True), print)
        for _ in range(2):
            parts.engine.step()
        return parts.engine._sequences[request_id].draft_request(3)

    def test_drafts_are_for_the_tokens_that_were_read(self, kit):
        parts = mtp(kit)
        asked = self.prepared(kit, parts)
        expected = kit.expected(kit.ask(70), 5)
        assert asked.tokens[70:] == expected[: len(asked.tokens) - 70]
        [draft] = parts.speculator.propose([asked])
        assert list(draft.token_ids) == expected[len(asked.tokens) - 70 :][:3]
        assert draft.proposals is None

    @pytest.mark.parametrize("change", [
        lambda asked: evolve(asked, tokens=[*asked.tokens, 5]),
        lambda asked: evolve(asked, tokens=asked.tokens[:-1]),
        lambda asked: evolve(asked, request_id=99),
    ])
    def test_there_are_none_for_a_request_that_went_on_without_it(self, kit, change):
        parts = mtp(kit)
        asked = self.prepared(kit, parts)
        drafts = parts.speculator.propose([change(asked), asked])
        assert [len(draft.token_ids) for draft in drafts] == [0, 3]

    def test_there_are_none_after_a_release(self, kit):
        parts = mtp(kit)
        asked = self.prepared(kit, parts)
        parts.speculator.release(asked.request_id)
        parts.speculator.release(asked.request_id)
        assert parts.speculator.propose([asked])[0].token_ids == ()

    def test_drawn_drafts_come_with_their_distributions(self, kit):
        parts = mtp(kit)
        asked = self.prepared(kit, parts)
        row = asked.row
        warm = evolve(asked, row=lambda pending: evolve(row(pending), params=WARM))
        for _ in range(2):
            cold, drawn = parts.speculator.propose([asked, warm])
            assert cold.proposals is None
            assert drawn.proposals.shape == (3, kit.VOCAB)
            assert drawn.proposals.dtype == torch.float64
            assert torch.allclose(drawn.proposals.sum(-1), torch.ones(3, dtype=torch.float64))
            assert (drawn.proposals.gather(1, torch.tensor(drawn.token_ids)[:, None]) > 0).all()

    def test_a_mask_without_a_likely_token_ends_the_drafts(self, kit):
        parts = mtp(kit)
        asked = self.prepared(kit, parts)
        row, nothing = asked.row, torch.zeros(kit.VOCAB, dtype=torch.bool)
        masked = evolve(asked, row=lambda pending: (
            evolve(row(pending), mask=nothing) if len(pending) == 2 else row(pending)))
        assert len(parts.speculator.propose([masked])[0].token_ids) == 2


def test_a_model_without_a_predictor_is_refused(kit):
    from ninfer_core.api import UnsupportedError

    with pytest.raises(UnsupportedError, match="builds no predictor"):
        kit.build(speculator=lambda_of(MtpSpeculator))


def lambda_of(cls):
    """A class that takes the predictor away before it begins."""

    class Robbed(cls):
        def __init__(self, context):
            context.model.predictor = None
            super().__init__(context)

    return Robbed


@pytest.mark.parametrize("speculator, drafts", [
    (MtpSpeculator, 1), (MtpSpeculator, 3), (AtOnce, 1), (AtOnce, 3)])
def test_captured_steps_draft_the_same(kit, speculator, drafts, monkeypatch):
    """What rounds have committed is read in steps of the sizes that were captured, by a stand-in
    for graphs which leaves out the row of padding behind it."""

    def size_of(batch):
        return batch.num_rows, batch.num_tokens, batch.num_logits, batch.num_pages

    class Captured:
        def __init__(self, forward):
            self.forward = forward

        def capture(self, batch):
            sizes.add(size_of(batch))

        def __call__(self, batch):
            ran.append(size_of(batch))
            if batch.num_rows > batch.num_logits:
                batch.num_rows -= 1
                batch.num_tokens = int(batch.row_start[batch.num_rows])
            return self.forward(batch)

    for module in ("mtp", "ahead"):
        monkeypatch.setattr(f"ninfer_drafting.{module}.CapturedForward", Captured)
    judge = None if speculator is MtpSpeculator else Prompt()
    requests, results, sizes, ran = requests_of(kit), [], set(), []
    for captures in (False, True):
        parts = kit.build(speculator=speculator, drafts=drafts, judge=judge)
        parts.model.predictor.errs = lambda position: position % 3 == 0
        if captures:
            parts.engine._speculation.capture()
        results.append(run(kit, parts, requests))
    assert results[0] == results[1]
    assert len(sizes) == (17 if judge is None else 25)
    assert (1, 64, 1, 8) in sizes.intersection(ran)  # whole chunks of prompts
    assert sum(size in sizes for size in ran) > len(ran) / 2


def test_a_capture_that_fails_costs_nothing_but_its_speed(kit, monkeypatch, caplog):
    def fail(forward):
        raise RuntimeError("no room for a graph")

    monkeypatch.setattr("ninfer_drafting.mtp.CapturedForward", fail)
    parts, requests = mtp(kit), requests_of(kit)
    parts.engine._speculation.capture()
    assert "cannot be captured" in caplog.text
    assert run(kit, parts, requests)[0] == [kit.expected(e, e.max_tokens) for e in requests]
