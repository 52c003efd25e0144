"""Rejected drafts and kept states at every remainder of a block of index keys and of the dilated
convolution leave logits as they are. Reuse and pauses of whole requests at every remainder are the
conformance kit's."""

from __future__ import annotations

import pytest

from ninfer_conformance.lab import MAX_DRAFTS, Move, Track, lab
from ninfer_conformance.subject import find_subject
from ninfer_core.plugin_host import PluginSelection, load_plugins

FRONTIERS = range(58, 70)  # across a page; multiples of 4 and of 3


@pytest.fixture(scope="module")
def bench():
    report = load_plugins(PluginSelection(modules=("ninfer_pack_flash_next.plugin",)))
    return lab(find_subject(report, "flash_next"), "profile")


@pytest.mark.parametrize("frontier", FRONTIERS)
def test_any_number_of_rejected_drafts(bench, frontier):
    for first in range(1 + MAX_DRAFTS):
        second = (first + frontier) % (1 + MAX_DRAFTS)
        what = f"{first} and {second} of {MAX_DRAFTS} drafts accepted at {frontier}"
        with bench.tracks(frontier + 14) as (track,):
            bench.run(track, frontier, frontier, what)
            bench.step(Move(track, 1 + first, MAX_DRAFTS), what=what)
            bench.step(Move(track, 1 + second, MAX_DRAFTS), what=what)
            bench.run(track, 2, frontier + 12, what)


@pytest.mark.parametrize("frontier", FRONTIERS[4:8])
def test_a_kept_state_goes_on(bench, frontier):
    for accepted in range(1 + MAX_DRAFTS):
        what = f"kept at {frontier} with {accepted} drafts to replay"
        with bench.tracks(frontier + 14) as tracks:
            track = tracks[0]
            bench.run(track, 64, frontier, what)
            bench.step(Move(track, 1 + accepted, MAX_DRAFTS), what=what)
            snapshot = bench.store.snapshot(track.state, track.frontier)
            bench.run(track, 1, track.frontier + 2, what)
            tracks.append(
                Track(track.tokens, bench.store.restore(snapshot), snapshot.num_tokens))
            for each in tracks:
                bench.run(each, 2, frontier + 12, what)
            bench.store.drop(snapshot)
