"""The rules of the prefix cache one by one, and faults that users of other engines reported."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ninfer_core.api import ArtifactError, CapacityError, NInferError
from ninfer_core.state.prefix_cache import Match
from ninfer_core.state.restore_point import RestorePoint
from ninfer_disk_tier.tier import DiskTier
from ninfer_fixtures.registered import disk_tier

SPECS = pytest.mark.parametrize("specs", ["hybrid", "paged", "recurrent"])


def text(seed, count):
    return random.Random(repr(seed)).choices(range(500), k=count)


SYSTEM = text("system", 128)


class Chat:
    """What an engine does for one conversation: go on from the cache, keep the ends."""

    def __init__(self, lab, system=SYSTEM, scope=""):
        self.lab, self.tokens, self.scope = lab, [*system], scope

    def turn(self, prompt, answer=()):
        """Read a prompt and write an answer; how many tokens of the prompt were not read."""
        lab, tokens = self.lab, self.tokens
        tokens += prompt
        match = lab.cache.match(tokens, self.scope)
        state = lab.cache.restore(match.point) if match.point else lab.store.open()
        assert state.num_tokens == match.num_tokens
        lab.verify(state, tokens)
        if (end := (len(tokens) - 1) // 64 * 64) > state.num_tokens:
            self.read(state, end - state.num_tokens)
            lab.cache.capture(state, tokens, end, self.scope, "prompt")
        self.read(state, len(tokens) - state.num_tokens)
        for token in answer:
            tokens.append(token)
            self.read(state, 1)
        if answer:
            lab.cache.capture(state, tokens, len(tokens), self.scope, "turn")
        lab.verify(state, tokens)
        lab.store.close(state)
        lab.cache.audit()
        return match.num_tokens

    def read(self, state, count):
        short = -(-(state.num_tokens + count) // 64) - len(state.pages)
        if self.lab.store.pool.num_free < short:
            self.lab.cache.reclaim(short)
        self.lab.read(state, self.tokens, count)


def point_at(lab, tokens, kind="prompt", scope=""):
    """A point behind all the tokens, whose sequence is gone; it went on from what there was."""
    match = lab.cache.match(tokens, scope)
    state = lab.cache.restore(match.point) if match.point else lab.store.open()
    lab.read(state, tokens, len(tokens) - state.num_tokens)
    point = lab.cache.capture(state, tokens, len(tokens), scope, kind)
    lab.store.close(state)
    return point


def tiers(point):
    return [tier.name for tier in point.copies]


def own_pages(lab, point):
    return lab.store.memory.num_freed([point.copies[lab.store.memory]])


def test_the_deepest_point_that_leaves_a_token(lab):
    lab, tokens = lab(), text(1, 200)
    points = {count: point_at(lab, tokens[:count]) for count in (200, 64, 130)}  # deeper first
    for count, best in ((201, 200), (200, 130), (131, 130), (130, 64), (65, 64)):
        expected = Match(points[best], best, min(count, 200))
        assert lab.cache.match([*tokens, 1][:count], "") == expected
    assert lab.cache.match(tokens[:64], "") == Match(None, 0, 64)
    assert lab.cache.match([*tokens[:99], -1, *tokens[100:]], "") == Match(points[64], 64, 99)
    assert lab.cache.match([], "") == lab.cache.match(tokens, "other") == Match(None, 0, 0)


def test_what_a_match_is_worth_nothing_without_its_scope(lab):
    lab, tokens = lab(), text(1, 70)
    first, second = (point_at(lab, tokens, scope=scope) for scope in ("a", ("b", 1)))
    assert first is not second
    assert lab.cache.match([*tokens, 1], ("b", 1)).point is second
    lab.cache.discard(second)
    assert lab.cache.match([*tokens, 1], ("b", 1)) == Match(None, 0, 0)
    lab.verify_cache()
    assert lab.cache.match([*tokens, 1], "a").point is first


@SPECS
def test_restoring_takes_what_is_shared_by_reference(lab, specs):
    lab, tokens = lab(specs), text(1, 200)
    aligned, unaligned = point_at(lab, tokens[:128]), point_at(lab, tokens)
    for point, copied in ((aligned, 0), (unaligned, specs != "recurrent")):
        free = lab.store.pool.num_free
        state = lab.cache.restore(point)
        assert free - lab.store.pool.num_free == copied
        lab.verify(state, tokens)
        lab.store.close(state)


@SPECS
@pytest.mark.parametrize("host_pages", [0, 40])
def test_any_offset_around_a_page(lab, specs, host_pages):
    """Reported bug 76: a prompt that ends anywhere within a page, then the same and 20 more."""
    for rest in (0, 1, 2, 4, 10, 31, 62, 63):
        room, tokens = lab(specs, host_pages=host_pages), text(rest, 192 + rest + 20)
        point = point_at(room, tokens[: 192 + rest])
        if host_pages:
            room.cache.reclaim(40)
            assert tiers(point) == ["host"]
        chat = Chat(room, tokens)
        assert chat.turn([]) == 192 + rest


def test_a_poisoned_state_goes_with_what_came_from_it(lab):
    lab, tokens = lab(), text(1, 300)
    before, poisoned, after = (point_at(lab, tokens[:count]) for count in (64, 130, 300))
    aside = point_at(lab, tokens[:64] + text(2, 64))
    lab.cache.discard(poisoned)
    assert lab.cache.match(tokens, "").point is before
    assert {*lab.cache._points} == {before, aside}
    with pytest.raises(NInferError, match="is gone"):
        lab.cache.restore(after)
    lab.cache.discard(poisoned)
    lab.verify_cache()


def test_conversations_that_share_a_system_prompt(lab):
    """Reported bug 79: A, A, B, B, A."""
    lab = lab(num_pages=60)
    a, b = Chat(lab), Chat(lab)
    assert a.turn(text("fig", 60), text("a1", 9)) == 0
    assert a.turn(text("a", 40), text("a2", 5)) == 197
    assert b.turn(text("kiwi", 60), text("b1", 7)) == 128
    assert b.turn(text("b", 90), text("b2", 7)) == 195
    assert a.turn(text("which fruit did I name?", 10), [1]) == 242


def test_the_end_of_the_system_prompt_is_shared_once_it_is_kept(lab):
    lab = lab(num_pages=60)
    stable = point_at(lab, SYSTEM, "stable")
    for name in "abc":
        assert Chat(lab).turn(text(name, 70)) == 128
    assert stable.uses == pytest.approx(3, abs=0.2)


def test_what_is_restored_is_what_was_matched(lab):
    """Reported bug 80: twelve tool turns after ``hi``, beside a chat with the same beginning."""
    lab = lab(num_pages=200)
    chats = [Chat(lab), Chat(lab)]
    for turn in range(13):
        for name, chat in enumerate(chats):
            known = len(chat.tokens)
            reused = chat.turn(text((name, turn), 30 if turn else 1), text((turn, name), 6))
            assert reused == (known if turn else 128 * name)


def test_an_immediate_repeat_hits_however_full_it_is(lab):
    """Reported bug 82: 39 system prompts, twice, in room for ten."""
    lab, hits = lab(num_pages=40), []
    for _ in range(2):
        for number in range(39):
            chat, evicted = Chat(lab, text(number, 130)), lab.cache.statistics.evicted
            hits.append(chat.turn([5, 5]))
            assert lab.cache.statistics.evicted - evicted <= 2  # and not all of them at once
    assert Chat(lab, text(38, 130)).turn([5, 5]) == 128
    assert lab.cache.statistics.refused == 0
    assert len(lab.cache.points) >= 9 and lab.store.pool.num_free < 8
    for number in range(38, 30, -1):
        assert Chat(lab, text(number, 130)).turn([5, 5]) == 128


def test_side_requests_do_not_displace_the_conversation(lab):
    lab = lab(num_pages=48)
    point_at(lab, SYSTEM, "stable")
    main, reused, reusable = Chat(lab), 0, 0
    for turn in range(30):
        reusable += len(main.tokens) if turn else 128
        reused += main.turn(text(turn, 20), text(-turn, 9))
        for side in range(2):
            Chat(lab, text((turn, side), 200)).turn([1], [2, 3])
    assert lab.cache.statistics.evicted > 50
    assert reused >= 0.97 * reusable
    assert lab.cache.statistics.reused_tokens == reused


def test_a_conversation_takes_its_uses_along(lab):
    lab, tokens = lab(num_pages=80), text(1, 400)
    stable, turn = point_at(lab, tokens[:64], "stable"), point_at(lab, tokens[:100], "turn")
    for point in (stable, stable, turn, turn):
        lab.store.close(lab.cache.restore(point))
    assert point_at(lab, tokens[:64] + text(2, 40)).uses == 0
    point_at(lab, tokens[:200], "anchor")
    later = point_at(lab, tokens)
    assert 1.9 < later.uses < turn.uses
    assert later.demand(lab.cache._now) > 2 * later.demand(lab.cache._now + 64) - 1e-9


def test_a_point_is_of_the_kind_that_is_wanted_most(lab):
    lab, tokens = lab(), text(1, 64)
    for kind, expected in (("anchor", "anchor"), ("turn", "turn"), ("stable", "stable"),
                           ("anchor", "stable"), ("mark", "stable")):
        state = lab.begin(tokens)
        assert lab.cache.capture(state, tokens, 64, "", kind).kind == expected
        lab.store.close(state)
    assert lab.cache.statistics.captured == 1


def test_an_anchor_displaces_nothing_better(lab):
    lab = lab(num_pages=9)
    kept = point_at(lab, text(1, 256))
    state = lab.begin(text(2, 128))
    assert lab.cache.capture(state, text(2, 128), 128, "", "anchor") is None
    assert lab.cache.statistics.refused == 1 and kept in lab.cache._points
    assert lab.cache.match(text(2, 129), "") == Match(None, 0, 0)
    assert lab.cache.capture(state, text(2, 128), 128, "", "prompt")
    assert kept not in lab.cache._points
    lab.verify_cache()


def test_a_capture_that_cannot_fit_evicts_nothing(lab):
    lab = lab(num_pages=9)
    kept = point_at(lab, text(1, 64))
    state = lab.begin(text(2, 320))
    held = lab.begin(text(3, 1))
    assert lab.cache.capture(state, text(2, 320), 320, "", "prompt")  # takes what kept had
    assert kept not in lab.cache._points
    again = lab.cache.capture(held, text(3, 1), 1, "", "prompt")
    assert again and lab.cache.statistics.refused == 0
    lab.cache.hold(again)
    lab.read(held, text(3, 2), 1)
    assert lab.cache.capture(held, text(3, 2), 2, "", "prompt") is None
    assert lab.cache.statistics.refused == 1 and again in lab.cache._points
    lab.verify_cache()


@pytest.mark.parametrize(("specs", "at", "refused"), [
    ("hybrid", 64, True), ("recurrent", 99, True), ("paged", 64, False), ("paged", 101, True),
])
def test_a_state_is_kept_only_where_it_stands(lab, specs, at, refused):
    lab, tokens = lab(specs), text(1, 200)
    state = lab.begin(tokens, 100)
    if refused:
        with pytest.raises(NInferError, match=f"{at} tokens wanted, it is the state after 100"):
            lab.cache.capture(state, tokens, at, "", "prompt")
    else:
        assert lab.cache.capture(state, tokens, at, "", "prompt")
    for wrong in (0, -1, 201):
        with pytest.raises(NInferError, match="a restore point is empty"):
            lab.cache.capture(state, tokens, wrong, "", "prompt")
    lab.verify_cache()


def test_recorded_rows_are_part_of_a_point(lab):
    lab, tokens = lab(host_pages=20), text(1, 80)
    state = lab.begin(tokens, 62)
    lab.read(state, tokens, 4, accepted=3)
    point = lab.cache.capture(state, tokens, 65, "", "turn")
    lab.store.close(state)
    for _ in range(2):
        state = lab.cache.restore(point)
        assert state.replay == 3
        lab.read(state, tokens, 15)
        lab.verify(state, tokens)
        lab.store.close(state)
        lab.cache.reclaim(40)
    assert tiers(point) == ["host"]


def test_evicting_a_point_in_the_middle(lab):
    lab, tokens = lab("paged"), text(1, 300)
    points = {count: point_at(lab, tokens[:count]) for count in (300, 70, 200)}
    aside = point_at(lab, tokens[:200] + text(2, 50))
    lab.cache._drop(points[200], lab.store.memory)
    lab.verify_cache()
    assert lab.cache.match(tokens[:250], "").num_tokens == 70
    assert lab.cache.match([*tokens, 1], "").point is points[300]
    assert lab.cache.match([*tokens[:200], *text(2, 60)], "").point is aside


def test_demoted_points_share_pages_once(lab):
    lab, tokens = lab(host_pages=20), text(1, 256)
    points = [point_at(lab, tokens[:128]), point_at(lab, tokens)]
    host = lab.cache._host
    images = sum(len(point.copies[lab.store.memory].image) for point in points)
    assert lab.cache.reclaim(40) == 4 + images
    assert [*map(tiers, points)] == [["host"]] * 2
    assert host.pool.num_pages - host.num_free == 4 + images


def test_promotion_copies_what_is_not_there(lab):
    lab, tokens = lab(host_pages=20), text(1, 256)
    shallow, deep = point_at(lab, tokens[:128]), point_at(lab, tokens)
    lab.cache.reclaim(40)
    first = lab.cache.restore(shallow)
    free = lab.store.pool.num_free
    second = lab.cache.restore(deep)
    assert free - lab.store.pool.num_free == 2 and second.pages[:2] == first.pages
    for state in (first, second):
        lab.verify(state, tokens)
        lab.store.close(state)
    third = lab.cache.restore(deep)
    assert lab.store.pool.num_pages - lab.store.pool.num_free == 4
    lab.verify(third, tokens)
    assert lab.cache.statistics.restored["host"] == 3


def test_a_full_device_keeps_on_the_host(lab):
    lab, tokens = lab(num_pages=4, host_pages=20), text(1, 256)
    state = lab.begin(tokens)
    point = lab.cache.capture(state, tokens, 256, "", "turn")
    assert tiers(point) == ["host"] and lab.cache.statistics.captured == 1
    lab.store.close(state)
    lab.verify(lab.cache.restore(point), tokens)


def test_the_host_gives_up_what_is_worth_less(lab):
    lab = lab(num_pages=40, host_pages=8)
    small, large = point_at(lab, text(1, 64)), point_at(lab, text(2, 320))
    lab.cache.reclaim(40)
    assert tiers(large) == ["host"] and small not in lab.cache._points
    again = point_at(lab, text(1, 64))
    lab.cache.reclaim(40)
    assert again not in lab.cache._points and tiers(large) == ["host"]
    lab.verify_cache()


def test_a_held_point_moves_but_is_not_lost(lab):
    with_host, without = lab(num_pages=12, host_pages=8), lab(num_pages=12)
    for room, where in ((with_host, ["host"]), (without, ["device"])):
        held, free = point_at(room, text(1, 64)), point_at(room, text(2, 64))
        room.cache.hold(held)
        assert room.cache.num_reclaimable == own_pages(room, free)
        room.cache.reclaim(12)
        assert tiers(held) == where
        room.cache.reclaim(12)
        room.verify(room.cache.restore(held), text(1, 64))
        room.cache.release(held)
        room.cache.reclaim(12)
        assert (held in room.cache._points) == bool(room is with_host)


def test_what_a_moved_point_shared_is_reclaimed_as_well(lab):
    lab = lab("paged", host_pages=2)
    point_at(lab, text(1, 64))
    lab.cache.hold(point_at(lab, text(1, 128)))
    assert lab.cache.num_reclaimable == 0
    assert lab.cache.reclaim(40) == 2


def test_what_would_free_nothing_stays(lab):
    lab = lab("paged")
    shallow, deep = point_at(lab, text(1, 64)), point_at(lab, text(1, 128))
    for _ in range(3):
        lab.store.close(lab.cache.restore(deep))
    assert lab.cache.reclaim(lab.store.pool.num_free + 1) == 1
    assert [*lab.cache._points] == [shallow]
    lab.cache.restore(shallow)
    assert lab.cache.reclaim(40) == 0 and [*lab.cache._points] == [shallow]


def test_reclaiming_stops_when_it_has_enough(lab):
    lab = lab(num_pages=20)
    points = [point_at(lab, text(number, 64)) for number in range(5)]
    own = own_pages(lab, points[0])
    free = lab.store.pool.num_free
    assert lab.cache.reclaim(free) == 0
    assert lab.cache.reclaim(free + 1) == own
    assert [*lab.cache._points] == points[1:]
    running = lab.cache.restore(points[1])
    assert lab.cache.reclaim(99) == 4 * own - 1  # a page of the last is a running sequence's
    lab.verify(running, text(1, 64))


def test_eviction_does_not_look_at_all_points_for_each(lab, monkeypatch):
    lab = lab("paged", num_pages=100)
    for number in range(30):
        trunk = text(number, 64)
        point_at(lab, trunk), point_at(lab, [*trunk, *text(-number, 64)])
    looks, demand = [], RestorePoint.demand
    monkeypatch.setattr(
        RestorePoint, "demand", lambda self, now: looks.append(self) or demand(self, now))
    assert lab.cache.reclaim(90) == 50
    assert 60 < len(looks) < 60 + 3 * 50  # 2,000 if all were looked at for each


def test_restoring_does_not_evict_the_point_it_restores(lab):
    """Though it is the one worth least, and one page is lacking."""
    lab = lab(num_pages=10)
    cheap, dear = point_at(lab, text(1, 65)), point_at(lab, text(2, 160), "stable")
    lab.begin(text(3, 1))
    assert lab.store.pool.num_free == 0
    lab.verify(lab.cache.restore(cheap), text(1, 65))
    assert [*lab.cache._points] == [cheap] and dear not in lab.cache._points
    lab.verify_cache()


def test_restoring_evicts_others_and_not_the_point_itself(lab):
    lab, tokens = lab(num_pages=16, host_pages=16), text(1, 320)
    point = point_at(lab, tokens)
    lab.cache.reclaim(16)
    others = [point_at(lab, text(seed, 64)) for seed in range(2, 7)]
    assert lab.store.pool.num_free < 5
    state = lab.cache.restore(point)
    lab.verify(state, tokens)
    assert point in lab.cache._points and not all("device" in tiers(each) for each in others)
    lab.verify_cache()


def test_a_restore_without_room_changes_nothing(lab):
    lab, tokens = lab(num_pages=12, host_pages=16), text(1, 320)
    point = point_at(lab, tokens)
    lab.cache.reclaim(12)
    other = point_at(lab, text(2, 64))
    running = lab.begin(text(3, 512))
    free = lab.store.pool.num_free
    with pytest.raises(CapacityError, match="no room for a restore point"):
        lab.cache.restore(point)
    assert lab.store.pool.num_free == free and tiers(other) == ["device"]
    lab.store.close(running)
    lab.verify(lab.cache.restore(point), tokens)
    lab.verify_cache()


def test_without_a_slot_nothing_is_evicted_either(lab):
    lab = lab(num_pages=8, max_sequences=1)
    point, other = point_at(lab, text(1, 65)), point_at(lab, text(2, 1))
    lab.begin(text(3, 1))
    assert lab.store.pool.num_free == 0
    with pytest.raises(CapacityError, match="no free state slot"):
        lab.cache.restore(point)
    assert [*lab.cache._points] == [point, other]


@pytest.mark.parametrize("awaited", [True, False])
def test_what_is_awaited_goes_after_what_is_not(lab, awaited):
    """Unless that is much dearer; and only as long as it is awaited."""
    lab = lab(num_pages=40)
    point, other, dear = (point_at(lab, text(*each)) for each in ((1, 128), (2, 192), (3, 900)))
    point.awaits += awaited
    assert [each.awaited for each in lab.cache.conversations()].count(True) == awaited
    lab.cache.reclaim(lab.store.pool.num_free + 1)
    assert [*lab.cache._points] == ([point, dear] if awaited else [other, dear])
    point.awaits = 0
    lab.cache.reclaim(40)
    assert not lab.cache._points


def test_a_version_tells_whether_anything_has_changed(lab):
    lab = lab(num_pages=40, host_pages=40)
    versions = [lab.cache.version]

    def changes():
        versions.append(lab.cache.version)
        return versions[-1] != versions[-2]

    first, second = point_at(lab, text(1, 64)), point_at(lab, text(2, 64))
    assert changes()
    lab.cache.match(text(1, 65), "")
    lab.store.close(lab.cache.restore(first))
    assert not changes()
    lab.cache.reclaim(40)
    assert tiers(first) == ["host"] and changes()
    lab.cache.discard(first)
    assert changes()
    lab.cache.clear()
    assert second not in lab.cache._points and changes()


def test_the_token_that_follows_is_that_of_each_copy(lab, tmp_path):
    """Of a state that was computed twice, before different tokens."""
    lab = lab(num_pages=10, host_pages=10, disk=disk_tier(tmp_path, 20))
    tokens, found = text(1, 64), []
    for follower in (7, 8):
        state = lab.begin(tokens)
        point = lab.cache.capture(state, [*tokens, follower], 64, "", "prompt")
        lab.store.close(state)
        lab.cache.persist()
        lab.cache.reclaim(10)
        found.append({tier.name: copy.next_token for tier, copy in point.copies.items()})
        assert lab.cache.source(point).name == "host"
        lab.cache.clear()
    assert found == [{"disk": 7, "host": 7}, {"disk": 7, "host": 8}]
    lab.cache.discard(point)
    with pytest.raises(NInferError, match="a restore point is gone"):
        lab.cache.source(point)


def test_conversations_are_chains_of_points(lab, tmp_path):
    """Two that begin alike, and a file; each with all its pages, and those that nobody else has."""
    lab = lab(disk=disk_tier(tmp_path, 60))
    system, image = text(1, 128), 0
    state = lab.begin(system)
    stable = lab.cache.capture(state, system, 128, "", "stable")
    for end, word in (("prompt", 2), ("turn", 3)):
        going = lab.cache.restore(stable)
        whole = [*system, *text(word, 70)]
        lab.read(going, whole, 70)
        last = lab.cache.capture(going, whole, 198, "", end)
        image = len(last.copies[lab.store.memory].image)
        lab.store.close(going)
    last.awaits += 1
    other = point_at(lab, text(5, 64), "mark", ("b", 1))
    assert lab.cache.persist()
    reports = lab.cache.conversations()
    assert [(each.kind, each.num_tokens, each.num_points, each.awaited) for each in reports] == [
        ("mark", 64, 1, False), ("turn", 198, 2, True), ("prompt", 198, 2, False)]
    assert [each.age for each in reports] == sorted(each.age for each in reports)
    assert [each.pages["device"] for each in reports] == [1 + image, 4 + 2 * image, 4 + 2 * image]
    own = 2 + image  # the third page, the rest behind it and the image of the last point
    assert [each.own_pages["device"] for each in reports] == [1 + image, own + image, own + image]
    assert [list(each.pages) for each in reports].count(["device", "disk"]) == 1
    last.awaits -= 1
    assert reports[0].scope == other.scope == ("b", 1)


class TestDisk:
    @pytest.fixture
    def make(self, lab, tmp_path):
        def make(*, pages=100, **sizes):
            return lab(disk=disk_tier(tmp_path, pages), **sizes)

        return make

    def test_a_restart_finds_what_was_written(self, make):
        lab, tokens = make(), text(1, 200)
        point_at(lab, tokens[:130], "stable", ("a", 1))
        deep = point_at(lab, tokens, "turn", ("a", 1))
        lab.cache.hold(deep)
        while lab.cache.persist():
            pass
        assert lab.cache.statistics.stored == 2
        again = make()
        match = again.cache.match([*tokens, 1], ("a", 1))
        assert (match.num_tokens, match.point.kind) == (200, "turn")
        again.verify(again.cache.restore(match.point), tokens)
        assert again.cache.statistics.restored["disk"] == 1
        again.cache.clear()
        assert len(again.cache.points) == 2

    def test_a_damaged_file_is_a_miss(self, make, caplog):
        lab, tokens = make(), text(1, 200)
        point_at(lab, tokens[:64]), point_at(lab, tokens)
        while lab.cache.persist():
            pass
        again = make()
        point = again.cache.match([*tokens, 1], "").point
        path = next(iter(point.copies.values())).path
        content = bytearray(path.read_bytes())
        content[0] ^= 1
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="a page is wrong"):
            again.cache.restore(point)
        assert not path.exists() and "is given up" in caplog.text
        assert again.cache.statistics.damaged == 1
        assert again.cache.match([*tokens, 1], "").num_tokens == 64
        again.verify_cache()

    def test_a_file_is_not_read_before_there_is_room_for_it(self, make, monkeypatch):
        lab, tokens = make(num_pages=12), text(1, 300)
        point = point_at(lab, tokens)
        lab.cache.persist()
        lab.cache.clear()
        running = lab.begin(text(2, 512))
        monkeypatch.setattr(DiskTier, "load", lambda *_: pytest.fail("read in vain"))
        with pytest.raises(CapacityError, match="no room for a restore point"):
            lab.cache.restore(point)
        monkeypatch.undo()
        lab.store.close(running)
        lab.verify(lab.cache.restore(point), tokens)

    def test_a_growing_conversation_is_written_now_and_then(self, make):
        lab, tokens = make(pages=1000, num_pages=200), text(1, 1000)
        for count in range(100, 1000, 20):
            point_at(lab, tokens[:count])
            while lab.cache.persist():
                pass
        files = sorted(p.num_tokens for p in lab.cache._points if "disk" in tiers(p))
        assert all(later >= earlier * 8 / 7 for earlier, later in pairwise(files))
        assert files[-1] > 1000 * 7 / 8 - 20 and len(files) < 20

    def test_the_folder_is_bounded_and_keeps_the_best(self, make):
        lab = make(pages=30, num_pages=200)
        large = point_at(lab, text(0, 640))
        assert lab.cache.persist()
        for seed in range(1, 12):
            point_at(lab, text(seed, 64))
            lab.cache.persist()
        assert lab.disk.num_free >= 0 and "disk" in tiers(large)
        assert 2 <= sum("disk" in tiers(point) for point in lab.cache._points) < 12
        smaller = make(pages=15)
        assert smaller.disk.num_free >= 0 and len(smaller.cache.points) == 1

    def test_files_do_not_displace_each_other_for_ever(self, make):
        lab = make(pages=12)
        for seed in range(12):
            point_at(lab, text(seed, 64), "anchor")
        writes = 0
        while lab.cache.persist():
            writes += 1
        assert 1 < writes <= 12
        assert not lab.cache.persist()

    def test_a_disk_that_cannot_be_written_costs_a_warning(self, make, monkeypatch, caplog):
        lab = make()
        point = point_at(lab, text(1, 64))
        monkeypatch.setattr(DiskTier, "save", lambda *_: (_ for _ in ()).throw(OSError("full")))
        assert not lab.cache.persist() and "cannot be written: full" in caplog.text
        monkeypatch.undo()
        assert not lab.cache.persist()  # not again and again
        lab.store.close(lab.cache.restore(point))
        assert lab.cache.persist() and tiers(point) == ["device", "disk"]

    def test_what_has_a_file_leaves_memory_without_being_lost(self, make):
        lab, tokens = make(), text(1, 100)
        point = point_at(lab, tokens)
        lab.cache.persist()
        lab.cache.reclaim(40)
        assert tiers(point) == ["disk"] and lab.cache.statistics.evicted == 0
        state = lab.cache.restore(point)
        lab.verify(state, tokens)
        assert lab.cache.capture(state, tokens, 100, "", "turn") is point
        assert tiers(point) == ["disk", "device"]
        lab.verify_cache()


@pytest.mark.parametrize("lose", [
    lambda lab, point: lab.cache._points.pop(point),
    lambda lab, point: lab.cache._host.drop(point.copies[lab.cache._host]),
    lambda lab, point: point.copies.clear(),
    lambda lab, point: setattr(point, "holds", -1),
])
def test_audit_finds_what_is_lost(lab, lose):
    lab = lab(num_pages=1, host_pages=20)
    point = point_at(lab, text(1, 64))
    assert tiers(point) == ["host"]
    lab.cache.audit()
    lose(lab, point)
    with pytest.raises(NInferError, match="restore points are lost"):
        lab.cache.audit()
