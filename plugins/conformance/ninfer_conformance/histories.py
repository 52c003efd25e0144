"""L3: whatever the history of a sequence, its logits are those of a fresh run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from ninfer_conformance.lab import MAX_DRAFTS, Lab, Move, Track
from ninfer_conformance.tolerances import require_close
from ninfer_core.state.memory import Snapshot
from ninfer_core.state.views import PagedPlanes


def prefill_in_any_chunks(lab: Lab) -> None:
    """Steps of any number of tokens; of one, it is decoding."""
    for width in (1, 5, 37, 63, 64, 65):
        with lab.tracks(131) as (track,):
            lab.run(track, width, 131, f"steps of {width}")


def company_changes_nothing(lab: Lab) -> None:
    """Eight sequences of all lengths together, prefilling, decoding and verifying."""
    lengths = (1, 5, 37, 63, 64, 65, 100, 131)
    with lab.tracks(*(4 + length for length in lengths)) as tracks:
        prefill = (Move(track, length) for track, length in zip(tracks, lengths, strict=True))
        lab.step(*prefill, what="prefill of 8")
        mixed = (Move(t, 1, None if i % 2 else i % MAX_DRAFTS) for i, t in enumerate(tracks))
        lab.step(*mixed, what="decoding and verifying")
        lab.step(*(Move(track, 2, 2) for track in tracks), what="verifying of 8")
        lab.step(*(Move(track, 1) for track in reversed(tracks)), what="decoding of 8")


def rejected_drafts_leave_no_trace(lab: Lab) -> None:
    """Every number of drafts and of accepted ones, twice in a row, across the end of a page."""
    for drafts in range(1, MAX_DRAFTS + 1):
        for accepted in range(drafts + 1):
            with lab.tracks(74) as (track,):
                what = f"{accepted} of {drafts} drafts"
                lab.run(track, 61, 61, what)
                for _ in range(2):
                    lab.step(Move(track, 1 + accepted, drafts), what=what)
                lab.run(track, 2, 74, f"after {what}")


def snapshots_are_reusable(lab: Lab) -> None:
    """A sequence and two restored from its snapshot go on together, each in its own way."""
    for what, tracks, snapshot in _snapshots(lab):
        for seed in (1, 2):
            tokens = tracks[0].tokens[: snapshot.num_tokens] + lab.tokens(6, seed)
            tracks.append(Track(tokens, lab.store.restore(snapshot), snapshot.num_tokens))
        for _ in range(2):
            lab.step(*(Move(track, 3) for track in tracks), what=what)


def pauses_leave_no_trace(lab: Lab) -> None:
    """A sequence is closed, another uses its memory, and it goes on from its snapshot."""
    for what, tracks, snapshot in _snapshots(lab):
        lab.store.close((paused := tracks.pop()).state)
        with lab.tracks(100) as (other,):
            lab.run(other, 100, 100, "another sequence")
        state = lab.store.restore(snapshot)
        tracks.append(Track(paused.tokens, state, snapshot.num_tokens))
        lab.run(tracks[0], 3, len(paused.tokens), f"paused, {what}")


def free_memory_is_not_read(lab: Lab) -> None:
    """Free pages and slots are full of NaN, or odd integers, and it changes nothing."""
    lab.fresh(lab.tokens(80))
    for plane in _planes(lab):
        plane.fill_(torch.nan if plane.is_floating_point() else torch.iinfo(plane.dtype).max)
    with lab.tracks(80) as (track,):
        lab.run(track, 37, 74, "in poisoned memory")
        lab.step(Move(track, 1, MAX_DRAFTS), what="verifying in poisoned memory")
        lab.run(track, 1, 80, "decoding in poisoned memory")


def numbers_stay_close(lab: Lab) -> None:
    """Logits are those of the reference kernels and an exact cache, to each codec's tolerance."""
    tokens = lab.tokens(131)
    expected = lab.reference.fresh(tokens)
    for kv in ("fp32", "bf16", "int8", "fp8"):
        tolerance = "fp32" if kv == "fp32" else f"{kv}_kv"
        require_close(lab.with_kv(kv).fresh(tokens), expected, f"logits, kv {kv}", tolerance)


def _snapshots(lab: Lab) -> Iterator[tuple[str, list[Track], Snapshot]]:
    """At the end of a page and inside one, of settled states and of those with tokens to replay."""
    for frontier, replay in product((64, 70), (0, 2)):
        what = f"a snapshot at {frontier} with {replay} to replay"
        with lab.tracks(frontier + 6) as tracks:
            lab.run(tracks[0], frontier, frontier - replay, what)
            if replay:
                lab.step(Move(tracks[0], replay, MAX_DRAFTS), what=what)
            snapshot = lab.store.snapshot(tracks[0].state, frontier)
            yield what, tracks, snapshot
            lab.store.drop(snapshot)


def _planes(lab: Lab) -> Iterator[torch.Tensor]:
    """All state memory, padding included."""
    for spec in lab.states:
        for layer in range(spec.layers):
            view = lab.store.view(spec.name, layer)
            if isinstance(view, PagedPlanes):
                yield from (part for parts in view.planes.values() for part in parts.values())
            else:
                yield from (view.committed, view.record)


CHECKS = (
    prefill_in_any_chunks, company_changes_nothing, rejected_drafts_leave_no_trace,
    snapshots_are_reusable, pauses_leave_no_trace, free_memory_is_not_read, numbers_stay_close,
)
