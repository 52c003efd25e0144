"""The sampler against a literal, scalar reading of its documented order."""

import math

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_core.api import SamplingParams
from ninfer_core.sampling.random import Purpose, uniform
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.sampling.sampler import FIRST_CANDIDATES, INVALID, Sampler, draw

sampler = Sampler()


def literal(logits, row):
    """Probability by token, in plain Python: penalties, mask, top-k, temperature, min-p, top-p."""
    p, z = row.params, dict(enumerate(logits.double().tolist()))
    if row.history:
        counts = row.history.counts.tolist()
        seen = set(row.history.seen.nonzero().flatten().tolist()) | set(row.pending)
        for token in row.pending:
            counts[token] += 1
        for token in seen:
            factor = p.repetition_penalty
            z[token] = z[token] / factor if z[token] > 0 else z[token] * factor
        for token, count in enumerate(counts):
            z[token] -= p.presence_penalty * (count > 0) + p.frequency_penalty * count
    if row.mask is not None:
        z = {token: value for token, value in z.items() if row.mask[token]}
    order = sorted(z, key=lambda token: (-z[token], token))
    if p.temperature == 0:
        return {order[0]: 1.0}
    order = order[: p.top_k or len(order)]
    weights = {token: math.exp((z[token] - z[order[0]]) / p.temperature) for token in order}
    weights = {token: w for token, w in weights.items() if w >= p.min_p * weights[order[0]]}
    total, kept, mass = sum(weights.values()), {}, 0.0
    for token, weight in weights.items():
        if mass >= p.top_p * total:
            break
        kept[token], mass = weight, mass + weight
    return {token: weight / mass for token, weight in kept.items()}


def close(probabilities, expected):
    dense = torch.zeros_like(probabilities)
    dense[list(expected)] = torch.tensor(list(expected.values()), dtype=torch.float64)
    return torch.allclose(probabilities, dense, rtol=1e-4, atol=1e-7)


params_of = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]), top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.05, 0.61, 0.93, 1.0]), min_p=st.sampled_from([0.0, 0.07, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.7]), frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]), seed=st.integers(0, 2**64 - 1),
)


@st.composite
def rows_of(draw, vocab_size):
    history = None
    if draw(st.booleans()):
        tokens = st.lists(st.integers(0, vocab_size - 1), max_size=4)
        history = TokenHistory(vocab_size, draw(tokens))
        for token in draw(tokens):
            history.append(token)
    mask = None
    if draw(st.booleans()):
        mask = torch.zeros(vocab_size, dtype=torch.bool)
        mask[draw(st.lists(st.integers(0, vocab_size - 1), min_size=1))] = True
    pending = tuple(draw(st.lists(st.integers(0, vocab_size - 1), max_size=2)))
    params, position = draw(params_of), draw(st.integers(0, 99))
    return SampleRow(params, position, Purpose.TOKEN, history, pending, mask)


@st.composite
def batches(draw):
    """Logits that are multiples of an odd fraction, so that ties are frequent but no filter's
    boundary falls on a rounding error."""
    vocab_size = draw(st.integers(1, 30))
    rows = draw(st.lists(rows_of(vocab_size), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    coarse = torch.randint(-6, 7, (len(rows), vocab_size), generator=generator)
    return coarse * 0.3711, rows


@settings(deadline=None, max_examples=150)
@given(batches())
def test_probabilities_follow_the_documented_order(batch):
    logits, rows = batch
    before = logits.clone()
    for probabilities, row, line in zip(
        sampler.probabilities(logits, rows), rows, logits, strict=True
    ):
        assert close(probabilities, literal(line, row))
    assert logits.equal(before)


@settings(deadline=None, max_examples=150)
@given(batches())
def test_a_row_draws_alone_what_it_draws_in_company(batch):
    logits, rows = batch
    together = sampler.sample(logits, rows)
    alone = [sampler.sample(logits[i : i + 1], [row]) for i, row in enumerate(rows)]
    assert together.equal(torch.cat(alone))
    for token, line, row in zip(together.tolist(), logits, rows, strict=True):
        assert token in literal(line, row)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.9), SamplingParams(temperature=0.9, min_p=0.05),
        SamplingParams(temperature=1.1, top_k=5), SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=6, top_p=0.9, min_p=0.02),
    ],
)
def test_draws_have_the_stated_distribution(params):
    logits = torch.tensor([1.2, -0.3, 0.4, 2.0, 0.4, -1.5, 0.9, 0.1]).expand(20_000, 8)
    rows = [SampleRow(evolve(params, seed=11), position) for position in range(20_000)]
    counts = torch.bincount(sampler.sample(logits, rows), minlength=8).double()
    expected = sampler.probabilities(logits[:1], rows[:1])[0] * 20_000
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_square < 24.3  # 7 degrees of freedom: p = 0.001


def test_the_draw_is_the_inverse_distribution_function_at_the_keyed_number():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    for position in range(50):
        row = SampleRow(SamplingParams(temperature=1.0, seed=3), position, Purpose.BONUS)
        number = uniform(3, position, Purpose.BONUS)
        expected = sum(number >= edge for edge in (0.1, 0.3, 0.6))
        assert sampler.sample(logits, [row]).item() == expected


@pytest.mark.parametrize(("number", "index"), [(0.0, 1), (0.25, 3), (1 - 2.0**-48, 4)])
def test_a_draw_never_lands_on_a_dropped_token(number, index, monkeypatch):
    monkeypatch.setattr("ninfer_core.sampling.sampler.uniform", lambda *key: number)
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 1.0, 0.0]])
    assert draw(weights, [SampleRow(SamplingParams(temperature=1.0), 0)]).tolist() == [index]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, [0]), (0.25, [0]), (0.5, [0, 1]), (0.500001, [0, 1, 2])]
)
@pytest.mark.parametrize("top_k", [0, 4])
def test_top_p_stops_exactly_where_the_mass_is_reached(top_p, kept, top_k):
    row = SampleRow(SamplingParams(temperature=1.0, top_p=top_p, top_k=top_k), 0)
    probabilities = sampler.probabilities(torch.zeros(1, 4), [row])
    assert probabilities[0].nonzero().flatten().tolist() == kept


@pytest.mark.parametrize("flat", [False, True])
def test_top_p_over_a_real_vocabulary(flat):
    """A peaked distribution ends within the first candidates, a flat one needs the whole sort."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 20_000, generator=generator) * (0.1 if flat else 8)
    row = SampleRow(SamplingParams(temperature=1.0, top_p=0.9), 0)
    kept = sampler.probabilities(logits, [row, row]) > 0
    assert (kept.sum(-1) > FIRST_CANDIDATES).all() == flat
    for line, mask in zip(logits, kept, strict=True):
        assert set(mask.nonzero().flatten().tolist()) == set(literal(line, row))


def test_top_p_draws_the_same_beside_a_row_that_needs_the_whole_sort():
    generator = torch.Generator().manual_seed(6)
    peaked, flat = (torch.randn(1, 2000, generator=generator) * scale for scale in (8, 0.1))
    rows = [SampleRow(SamplingParams(temperature=1.0, top_p=0.9), p) for p in range(40)]
    for row in rows:
        alone = sampler.sample(peaked, [row])
        assert sampler.sample(torch.cat((peaked, flat)), [row, row])[:1].equal(alone)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_ties_go_to_the_lower_id(top_k):
    logits = torch.tensor([[0.0, 3.0, -0.0, 3.0, 0.0, 3.0]])
    row = SampleRow(SamplingParams(temperature=1.0, top_k=top_k), 0)
    kept = sampler.probabilities(logits, [row])[0].nonzero().flatten().tolist()
    assert kept == [1, 3, 5][:top_k]
    zeros = torch.tensor([[-0.0, 0.0, -0.0]])
    assert sampler.probabilities(zeros, [row])[0].nonzero().flatten().tolist() == [0, 1, 2][:top_k]
    assert sampler.sample(logits, [SampleRow(SamplingParams(), 0)]).item() == 1


ALL_KINDS = [
    SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.5), SamplingParams(temperature=1.0, min_p=0.1),
]


@pytest.mark.parametrize("params", ALL_KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_fails_alone(params, bad):
    logits = torch.randn(3, 6)
    logits[1, 4] = bad
    rows = [SampleRow(params, position) for position in range(3)]
    tokens = sampler.sample(logits, rows)
    assert tokens[1] == INVALID
    assert tokens[::2].equal(sampler.sample(logits[::2], rows[::2]))
    assert (tokens[::2] >= 0).all()
    assert sampler.probabilities(logits, rows)[1].eq(0).all()


@pytest.mark.parametrize("params", ALL_KINDS)
def test_a_mask_that_allows_nothing_fails_the_row(params):
    row = SampleRow(params, 0, mask=torch.zeros(6, dtype=torch.bool))
    assert sampler.sample(torch.randn(1, 6), [row]).item() == INVALID


@pytest.mark.parametrize("params", ALL_KINDS)
def test_a_mask_wins_over_everything(params):
    mask = torch.zeros(6, dtype=torch.bool)
    mask[2] = True
    logits = torch.tensor([[9.0, 9.0, -40.0, 9.0, 9.0, 9.0]])
    assert sampler.sample(logits, [SampleRow(params, 0, mask=mask)]).item() == 2


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-45, 1e-30, 1e-3])
def test_tiny_temperatures_are_greedy_and_finite(temperature):
    logits = torch.randn(1, 100) * 50
    row = SampleRow(SamplingParams(temperature=temperature), 0)
    assert sampler.sample(logits, [row]).item() == logits.argmax().item()


def test_penalties_see_prompt_output_and_pending_drafts():
    history = TokenHistory(5, prompt=(0,))
    history.append(1)
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=2.0)
    row = SampleRow(params, 0, history=history, pending=(1, 2))
    logits = torch.tensor([[8.0, 8.0, -1.0, 3.9, -9.0]])
    # 8/2, 8/2 - 1 - 2 * 0.5, -1*2 - 1 - 0.5, untouched, untouched
    adjusted = [[4.0, 2.0, -3.5, 3.9, -9.0]]
    warm = evolve(row, params=evolve(params, temperature=1.0))
    expected = torch.tensor(adjusted, dtype=torch.float64).softmax(-1)
    assert torch.allclose(sampler.probabilities(logits, [warm]), expected, rtol=1e-5)
    assert sampler.sample(logits, [row]).item() == 0
    assert history.counts.tolist() == [0, 1, 0, 0, 0]
