"""Going on from the states of other requests: always the same answer, and a record of why."""

import pytest
from attrs import evolve

from ninfer_core.api import PreparedPrompt, RequestError, SamplingParams
from ninfer_core.engine.request import Reuse
from ninfer_core.engine.residence import places_of
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_fixtures.registered import disk_tier

SPECULATORS = [None, MtpSpeculator]


def prompt(*parts):
    """A prompt of runs of tokens, each ``(seed, length)``."""
    tokens = ((seed * 17 + i * i) % 47 + 1 for seed, length in parts for i in range(length))
    return PreparedPrompt(tuple(tokens), "")


def answer(kit, parts, prompt, *, max_tokens=8, **fields):
    """The end of a request that is served alone, whose tokens must be the model's."""
    request = kit.ask(prompt=prompt, max_tokens=max_tokens, ignore_eos=True, **fields)
    [events] = kit.serve(parts, request)
    assert list(events[-1].token_ids) == kit.expected(request, max_tokens)
    return events[-1]


@pytest.mark.parametrize("speculator", SPECULATORS)
@pytest.mark.parametrize("length", range(126, 131))
@pytest.mark.parametrize("shared", range(126, 131))
def test_around_the_edge_of_a_page(kit, speculator, length, shared):
    """A, then B that shares so many tokens of it, then A again: each as if it were alone."""
    parts = kit.build(speculator=speculator)
    a = prompt((1, length))
    b = prompt((1, min(shared, length)), (2, 40))
    for each in (a, b, a, b, a):
        last = answer(kit, parts, each)
    assert last.reuse.num_tokens == (length - 1) // 64 * 64


@pytest.mark.parametrize("speculator", SPECULATORS)
@pytest.mark.parametrize("offset", range(-2, 3))
def test_the_next_turn_goes_on_where_the_answer_ended(kit, speculator, offset):
    parts = kit.build(speculator=speculator)
    first = prompt((1, 120 + offset))
    end = answer(kit, parts, first)
    tokens = (*first.token_ids, *end.token_ids)
    second = answer(kit, parts, PreparedPrompt((*tokens, *prompt((3, 70)).token_ids), ""))
    assert second.reuse == Reuse(
        num_tokens=len(tokens) - 1, kind="turn", tier="device", diverged_at=len(tokens) - 1,
        known=second.reuse.known, new=second.reuse.new,
    )
    assert second.timings.prefill_tokens == 71


@pytest.mark.parametrize("speculator", SPECULATORS)
@pytest.mark.parametrize("remainder", range(16))
def test_any_remainder_behind_a_page(kit, speculator, remainder):
    """Bug 76: A of 3 pages and a rest, then A and 20 tokens more."""
    parts = kit.build(speculator=speculator)
    a = prompt((1, 3 * 64 + 4 * remainder))
    answer(kit, parts, a)
    last = answer(kit, parts, PreparedPrompt((*a.token_ids, *prompt((2, 20)).token_ids), ""))
    assert last.reuse.num_tokens == (len(a.token_ids) - 1) // 64 * 64


def test_a_conversation_is_entered_again_beside_another(kit):
    """Bugs 77, 79, 80: A1, A2, B1, B2, A3 with one system prompt."""
    parts, system = kit.build(), prompt((9, 200)).token_ids
    histories = {"a": system, "b": system}
    for turn, who in enumerate("aabbabab"):
        more = prompt((ord(who) + turn, 30)).token_ids
        asked = evolve(prompt(), token_ids=(*histories[who], *more), num_stable=200)
        end = answer(kit, parts, asked)
        if len(histories[who]) > 200:
            assert end.reuse.kind == "turn"
            assert end.reuse.num_tokens == len(histories[who]) - 1
        elif who == "b":
            assert (end.reuse.kind, end.reuse.num_tokens) == ("stable", 192)
        histories[who] = (*asked.token_ids, *end.token_ids)


def test_a_retry_reads_64_tokens_at_most(kit):
    parts = kit.build()
    for length in (64, 65, 127, 128, 129, 290):
        first, second = (answer(kit, parts, prompt((length, length))) for _ in range(2))
        assert first.reuse.num_tokens == 0
        assert length - second.reuse.num_tokens <= 64
        assert second.reuse.diverged_at is None


@pytest.mark.parametrize("cycles", [1, 2, 3])
def test_what_a_cancelled_request_has_read_is_not_read_again(kit, cycles):
    parts, events = kit.build(), []
    asked = kit.ask(300, ignore_eos=True)
    request_id = parts.engine.submit(asked, events.append)
    for _ in range(cycles):
        parts.engine.step()
    parts.engine.cancel(request_id)
    parts.engine.run_until_idle()
    assert events[-1].reason == "cancelled"
    assert answer(kit, parts, asked.prompt).reuse.num_tokens == 64 * cycles


def test_what_a_request_has_read_until_its_deadline_is_not_read_again(kit):
    now = [0.0]
    parts, events = kit.build(clock=lambda: now[0]), []
    asked = kit.ask(300, deadline_s=1.5, ignore_eos=True)
    parts.engine.submit(asked, events.append)
    for now[0] in (0.5, 1.0, 1.5):
        parts.engine.step()
    assert events[-1].reason == "deadline"
    assert answer(kit, parts, asked.prompt).reuse.num_tokens == 128


class TestWhy:
    def test_a_miss_shows_where_the_prompt_differs(self, kit):
        """A nonce near the front: the record says so."""
        parts = kit.build()
        a = prompt((1, 200)).token_ids
        nonce = (*a[:70], a[70] % 47 + 1, *a[71:])
        answer(kit, parts, PreparedPrompt(a, ""))
        reuse = answer(kit, parts, PreparedPrompt(nonce, "")).reuse
        assert (reuse.num_tokens, reuse.kind, reuse.tier) == (0, "", "")
        assert reuse.diverged_at == 70
        assert reuse.known == kit.text(a[54:70])
        assert reuse.new == kit.text(nonce[70:86])

    def test_a_text_without_utf8_can_be_shown(self, kit):
        class Frontend(kit.LetterFrontend):
            class tokenizer(type(kit.LetterFrontend.tokenizer)):
                def token_bytes(self, token_id):
                    return b"\xff"

            tokenizer = tokenizer()

        [events] = kit.serve(kit.build(frontend=Frontend()), kit.ask(20))
        assert events[-1].reuse.new == "\N{REPLACEMENT CHARACTER}" * 16

    def test_a_scope_is_a_world_of_its_own(self, kit):
        parts, asked = kit.build(), prompt((1, 200))
        answer(kit, parts, asked)
        other = answer(kit, parts, evolve(asked, scope=("image", b"digest")))
        assert (other.reuse.num_tokens, other.reuse.diverged_at) == (0, 0)
        assert answer(kit, parts, asked).reuse.num_tokens == 192

    @pytest.mark.parametrize("scope", [["image"], {"a": 1}, ("a", ["b"]), 1.5])
    def test_a_scope_that_is_no_literal_is_refused(self, kit, scope):
        """What cannot be looked up, or written, must not reach the cache."""
        parts, asked = kit.build(), evolve(prompt((1, 200)), scope=scope)
        with pytest.raises(RequestError, match=r"\[scope\]"):
            parts.engine.submit(kit.ask(prompt=asked), print)
        assert kit.serve(parts, kit.ask(prompt=asked, use_cache=False))[0][-1].cause is None

    def test_a_request_can_stay_out_of_the_cache(self, kit):
        parts, asked = kit.build(), prompt((1, 200))
        assert answer(kit, parts, asked, use_cache=False).reuse == Reuse()
        assert parts.engine.cache.points == ()
        answer(kit, parts, asked)
        assert answer(kit, parts, asked, use_cache=False).reuse == Reuse()

    def test_an_engine_without_a_cache_reuses_nothing(self, kit):
        parts = kit.build(cache=False)
        for _ in range(2):
            assert answer(kit, parts, prompt((1, 200))).reuse == Reuse()
        assert parts.store.pool.num_free == parts.store.pool.num_pages


@pytest.mark.parametrize("follows", [True, False])
def test_a_predictor_goes_on_only_where_the_same_token_follows(kit, follows):
    """What it has read of the last position of a point depends on the next token, too."""
    parts = kit.build(speculator=MtpSpeculator, anchor=64)
    a = prompt((1, 300)).token_ids
    answer(kit, parts, PreparedPrompt(a, ""))
    at = 192 + follows
    b = (*a[:at], a[at] % 47 + 1, *a[at + 1 :])
    end = answer(kit, parts, PreparedPrompt(b, ""))
    assert end.reuse.num_tokens == (192 if follows else 128)
    assert end.usage.accepted_tokens == end.usage.drafted_tokens > 0


@pytest.mark.parametrize("follows", [True, False])
def test_a_file_tells_what_followed(kit, tmp_path, follows):
    """The same across processes."""
    def start():
        return kit.build(speculator=MtpSpeculator, anchor=64, disk=disk_tier(tmp_path, 100))

    a = prompt((1, 300)).token_ids
    parts = start()
    answer(kit, parts, PreparedPrompt(a, ""), max_tokens=1)
    parts.engine.close()
    at = 192 + follows
    end = answer(kit, start(), PreparedPrompt((*a[:at], a[at] % 47 + 1, *a[at + 1 :]), ""))
    assert end.reuse.num_tokens == (192 if follows else 128)
    assert end.reuse.tier == "disk"
    assert end.usage.accepted_tokens == end.usage.drafted_tokens > 0


def test_39_system_prompts_come_back(kit):
    """Bug 82: whatever does not fit any more, an immediate repeat hits, and nothing is latched."""
    parts = kit.build(num_pages=40)
    systems = [prompt((i, 200)) for i in range(39)]
    for each in systems * 2:
        answer(kit, parts, each, max_tokens=2)
        assert answer(kit, parts, each, max_tokens=2).reuse.num_tokens == 192
    statistics = parts.engine.cache.statistics
    assert statistics.evicted > 0
    recent = [answer(kit, parts, each, max_tokens=2).reuse.num_tokens for each in systems[-3:]]
    assert recent.count(192) >= 2, "the hit rate falls gradually"


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_what_two_prompts_begin_with_is_kept_for_the_third(kit, speculator):
    """Tools of 150 tokens, then a nonce: the second request leaves a point where it parts."""
    parts, tools = kit.build(speculator=speculator), (1, 150)
    ends = [answer(kit, parts, prompt(tools, (nonce, 90))) for nonce in (2, 3, 4, 5)]
    found = [(end.reuse.num_tokens, end.reuse.kind, end.reuse.diverged_at) for end in ends]
    assert found == [(0, "", 0), (0, "", 150), (128, "branch", 150), (128, "branch", 150)]
    assert [point.kind for point in parts.engine.cache.points].count("branch") == 1


def test_a_conversation_that_goes_on_leaves_no_branch(kit):
    parts, tokens = kit.build(), prompt((1, 200)).token_ids
    for turn in range(4):
        end = answer(kit, parts, PreparedPrompt(tokens, ""))
        tokens = (*tokens, *end.token_ids, *prompt((turn, 70)).token_ids)
    assert {point.kind for point in parts.engine.cache.points} == {"prompt", "turn"}


@pytest.mark.parametrize(("num_prompt", "num_stable", "marks", "anchor", "places"), [
    (10, 0, (), 4096, []), (64, 0, (), 4096, []), (65, 0, (), 4096, [(64, "prompt")]),
    (300, 150, (), 4096, [(128, "stable"), (256, "prompt")]),
    (300, 128, (), 4096, [(64, "stable"), (256, "prompt")]),
    (300, 290, (), 4096, [(256, "stable")]),
    (300, 0, (70, 300, 999), 4096, [(64, "mark"), (256, "mark")]),
    (300, 0, (), 128, [(128, "anchor"), (256, "prompt")]),
    (2000, 0, tuple(range(1900, 64, -64)), 4096,
     [*((at, "mark") for at in range(1408, 1920, 64)), (1984, "prompt")]),
])
def test_where_restore_points_are_wanted(num_prompt, num_stable, marks, anchor, places):
    assert places_of(num_prompt, num_stable, marks, anchor) == places


def test_sampled_answers_are_the_same_from_a_point(kit):
    parts = kit.build()
    warm = SamplingParams(temperature=0.9, seed=5, repetition_penalty=1.3, presence_penalty=0.4)
    for _ in range(2):
        answer(kit, parts, prompt((1, 200)), sampling=warm)
