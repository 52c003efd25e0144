"""Cycles of whole engines on random weights, with and without drafts."""

import json
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_bench import device_time, rounds
from ninfer_bench.device_time import clocked_steps, idle_share, launches, share_between
from ninfer_bench.forced import ForcedJudge
from ninfer_bench.synthetic_engine import WideTokenizer
from ninfer_core.engine.graphs import CapturedForward
from ninfer_core.sampling.sampler import INVALID
from ninfer_core.sampling.verify import Drafted, Verdict
from ninfer_fixtures.tiny import tiny_resources

PACK = "ninfer_pack_qwen_dense.plugin"


@pytest.mark.parametrize("sampled", [[], ["--sampled"]], ids=["likeliest", "drawn"])
def test_cycles_with_and_without_drafts_are_measured(
    ninfer, predicting_model, monkeypatch, once, sampled
):
    monkeypatch.setattr(rounds, "WARM_UP", 1)
    monkeypatch.setattr(rounds, "WATCHED", 1)
    code, out, err = ninfer(
        "bench", "engine", "rounds", predicting_model, "--rows", "1,2", "--context", "20",
        "--cycles", "8", "--spec", "mtp", "--draft-tokens", "2", "--acceptance", "0.5", "--json",
        "--prefill-chunk", "64", *sampled, "-p", "ninfer_bench.plugin", "-p", PACK)
    assert code == 0, err
    assert "speculator failed" not in err
    found = json.loads(out)
    runs = found["runs"]
    assert [(each["drafts"], each["rows"]) for each in runs] == [
        (False, 1), (False, 2), (True, 1), (True, 2)]
    assert all(0 < each["step_seconds"] < each["seconds"] for each in runs)
    plain, drafted = runs[:2], runs[2:]
    assert [each["tokens"] for each in plain] == [1, 1]
    assert all(1.3 < each["tokens"] < 2.3 for each in drafted)  # 1 + 1/2 + 1/4
    for one, other in zip(plain, drafted, strict=True):
        assert other["gain"] == pytest.approx(other["tokens_per_s"] / one["tokens_per_s"])
        assert 1 / 3 < other["predicted_gain"] < 1.75  # three times the weights for 1.75 tokens


class Agreeing:
    """Accepts nothing."""

    def verify(self, logits, drafted, likeliest=None):
        return [Verdict(0, INVALID if 13 in each.drafts else 7) for each in drafted]

    def accept(self, tokens, drafts):
        return torch.zeros(len(drafts), dtype=torch.int64)


def test_forced_drafts_are_accepted_as_often_as_is_said():
    judge, many = ForcedJudge(Agreeing(), 0.7), 3000
    drafted = Drafted(rows=(), drafts=(1, 2, 3))
    counts = [0] * 4
    for _ in range(many):
        [verdict] = judge.verify(torch.zeros(4, 8), [drafted])
        counts[verdict.accepted] += 1
        assert verdict.token == 7
    expected = [0.3, 0.7 * 0.3, 0.49 * 0.3, 0.343]
    assert all(abs(n / many - p) < 0.03 for n, p in zip(counts, expected, strict=True))
    failing = Drafted(rows=(), drafts=(13,))
    assert judge.verify(torch.zeros(2, 8), [failing]) == [Verdict(0, INVALID)]


def test_all_or_no_drafts_can_be_accepted():
    drafted = [Drafted(rows=(), drafts=tuple(range(n))) for n in (0, 2, 5)]
    for chance, expected in ((0.0, [0, 0, 0]), (1.0, [0, 2, 5])):
        verdicts = ForcedJudge(Agreeing(), chance).verify(torch.zeros(10, 8), drafted)
        assert [each.accepted for each in verdicts] == expected


def test_what_the_device_accepts_is_forced_alike():
    tokens, drafts = torch.zeros(3000, 4), torch.zeros(3000, 3)
    found = ForcedJudge(Agreeing(), 0.7).accept(tokens, drafts)
    shares = found.bincount(minlength=4) / 3000
    expected = torch.tensor([0.3, 0.7 * 0.3, 0.49 * 0.3, 0.343])
    assert (shares - expected).abs().max() < 0.03


def test_tokens_beyond_the_tokenizer_are_letters():
    tokenizer = WideTokenizer(tiny_resources()["tokenizer.json"], 1000)
    assert tokenizer.vocab_size == 1000
    assert tokenizer.token_bytes(ord("A")) == b"A"
    assert {len(tokenizer.token_bytes(i)) for i in range(259, 1000)} == {1}
    assert tokenizer.encode("ab") == [97, 98]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1))
def test_what_is_in_no_span_is_idle(spans):
    found = [(begin, begin + length) for begin, length in spans]
    moments = {at for begin, end in found for at in range(begin, end)}
    first, last = min(begin for begin, _ in found), max(end for _, end in found)
    expected = 1 - len(moments) / (last - first) if last > first else 0.0
    Random(1).shuffle(found)
    assert share_between(found) == pytest.approx(expected)


def test_without_a_gpu_steps_are_clocked_and_idleness_is_unknown():
    class Model:
        def forward(self, batch):
            return batch

    model, ran = Model(), []
    with clocked_steps("cpu", [model]) as seconds:
        assert model.forward(3) == 3
        assert seconds() > 0
    assert idle_share("cpu", lambda: ran.append(1)) is None and ran == [1]
    assert share_between([]) == 0


def test_on_a_gpu_captured_steps_are_clocked(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def elapsed_time(self, end):
            return 2.0  # ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    captured = CapturedForward.__new__(CapturedForward)
    monkeypatch.setattr(CapturedForward, "__call__", lambda self, batch: batch + 1)
    with clocked_steps("cuda", []) as seconds:
        assert [captured(1), captured(2)] == [2, 3]
        assert seconds() == pytest.approx(0.004)
    assert captured(3) == 4


def test_on_a_gpu_launches_are_counted(monkeypatch):
    seen = [("one", 0.0, 2.0), ("two", 1.0, 5.0), ("one", 8.0, 10.0)]
    monkeypatch.setattr(device_time, "_watched", lambda run: seen)
    assert idle_share("cuda", lambda: None) == pytest.approx(0.3)
    assert launches("cuda", lambda: None) == {"one": (2, pytest.approx(4e-6)),
                                              "two": (1, pytest.approx(4e-6))}
    assert launches("cpu", lambda: None) == {}
