"""What a sequence owns, above the budget of sparse attention and at every remainder of a pool."""

from __future__ import annotations

import pytest

from ninfer_conformance.lab import Lab, Move, Track, lab
from ninfer_conformance.subject import find_subject
from ninfer_core.plugin_host import PluginSelection, load_plugins

START, POOL, DRAFTS = 80, 4, 3
"""Where 64 tokens are selected of more; tokens of a pool; most drafts of a round."""


@pytest.fixture(scope="module", params=["reference", "profile"])
def tiny(request) -> Lab:
    modules = ("ninfer_pack_glm.plugin", "ninfer_ops.plugin", "ninfer_profile_cpu.plugin")
    report = load_plugins(PluginSelection(modules=modules, names=()))
    return lab(find_subject(report, "glm"), request.param)


@pytest.mark.parametrize("remainder", range(POOL))
def test_rejected_drafts_leave_no_trace(tiny, remainder):
    """Nor in pools that they had completed; of any number some may be accepted."""
    frontier = START + remainder
    with tiny.tracks(START + 14) as tracks:
        tiny.run(tracks[0], 64, frontier, "a prompt")
        snapshot = tiny.store.snapshot(tracks[0].state, frontier)
        for drafts in range(1, DRAFTS + 1):
            for accepted in range(drafts + 1):
                track = Track(tracks[0].tokens, tiny.store.restore(snapshot), frontier)
                tracks.append(track)
                what = f"{accepted} of {drafts} drafts at {frontier}"
                for _ in range(2):
                    tiny.step(Move(track, 1 + accepted, drafts), what=what)
                tiny.run(track, 2, START + 14, f"after {what}")
                tiny.store.close(tracks.pop().state)
        tiny.store.drop(snapshot)


@pytest.mark.parametrize("remainder", range(POOL))
@pytest.mark.parametrize("replay", [0, 1, 3])
def test_a_restored_state_goes_on_as_the_one_it_was_taken_of(tiny, remainder, replay):
    frontier = START + remainder
    with tiny.tracks(frontier + 9) as tracks:
        what = f"a snapshot at {frontier} with {replay} to replay"
        tiny.run(tracks[0], 64, frontier - replay, what)
        if replay:
            tiny.step(Move(tracks[0], replay, DRAFTS), what=what)
        snapshot = tiny.store.snapshot(tracks[0].state, frontier)
        tokens = tracks[0].tokens[:frontier] + tiny.tokens(9, 5)
        tracks.append(Track(tokens, tiny.store.restore(snapshot), frontier))
        for width in (1, 2, 3, 3):
            tiny.step(*(Move(track, width) for track in tracks), what=what)
        tiny.store.drop(snapshot)


def test_predictions_forget_rejected_drafts_at_every_remainder(tiny):
    """The predictor has pools of its own."""
    for remainder in range(POOL):
        with tiny.tracks(START + 8) as (track,):
            what = f"predictions at {START + remainder}"
            for width in (64, START + remainder - 64):
                move = Move(track, width)
                tiny.predict(move, hidden=tiny.step(move, what=what), what=what)
            while track.frontier + 1 < len(track.tokens):
                tiny.predict_wrongly(track, steps=DRAFTS)
                move = Move(track, 1)
                tiny.predict(move, hidden=tiny.step(move, what=what), what=what)
