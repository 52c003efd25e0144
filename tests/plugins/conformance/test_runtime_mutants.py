"""One mistake in the runtime, under a sound pack, makes the right check fail as well."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_core.engine import commit
from ninfer_core.ops.linear.reference import RowProduct
from ninfer_core.sampling.verify import Judge, Verdict
from ninfer_core.state.batch import BatchBuilder
from ninfer_core.state.codecs import Fp8Codec, Int8Codec
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_fixtures.tiny import TinyModel


def stale_slots(open_):
    """A slot is handed out as its last owner left it."""

    def mutant(self):
        before = self._slots.clone()
        state = open_(self)
        self._slots.copy_(before)
        return state

    return mutant


def shared_tails(restore):
    """Restored sequences write into the snapshot's last page."""

    def mutant(self, snapshot):
        state = restore(self, snapshot)
        self.pool.release(state.pages)
        self.pool.share(snapshot.pages)
        state.pages = list(snapshot.pages)
        return state

    return mutant


def lost_images(restore):
    """Pages are restored, the slot is not."""

    def mutant(self, snapshot):
        state = restore(self, snapshot)
        self._slots[state.slot] = 0
        return state

    return mutant


def lost_replays(restore):
    """Recorded rows are forgotten over a pause."""

    def mutant(self, snapshot):
        state = restore(self, snapshot)
        state.replay = 0
        return state

    return mutant


def leaked_pages(close):
    def mutant(self, state):
        state.pages = state.pages[1:]
        close(self, state)

    return mutant


def credulous(verify):
    """Every draft is accepted."""

    def mutant(judge, logits, drafted, likeliest=None):
        pairs = zip(drafted, verify(judge, logits, drafted, likeliest), strict=True)
        return [Verdict(len(each.drafts), verdict.token) for each, verdict in pairs]

    return mutant


def trusting(accept):
    """The same, on the device."""

    def mutant(judge, tokens, drafts):
        return accept(judge, tokens, drafts).fill_(drafts.shape[1])

    return mutant


def forgetful(fill):
    """What steps that are launched ahead have recorded is not applied."""
    return lambda self, rows: fill(self, [evolve(row, replay=row.replay and 0) for row in rows])


def halting(move):
    """Rounds that are launched ahead begin where they should, without what was accepted before."""

    def mutant(self, later):
        replay = self.replay.clone()
        move(self, later)
        self.replay.copy_(replay)

    return mutant


def overrunning(preview):
    """The text stops at the stop string, the tokens do not."""

    def mutant(sequence, candidates, reason=None):
        return evolve(preview(sequence, candidates, reason), token_ids=candidates)

    return mutant


def loud(decode):
    return lambda self, stored: decode(self, stored) * 1.5


def tilted(init):
    """Kernels of packed weights are a little off."""

    def mutant(self, weight):
        init(self, weight)
        self._matrix *= 1.0 if weight.info.format.name == "fp32" else 1.01

    return mutant


MUTANTS = [
    ("prefill_in_any_chunks", StateStore, "open", stale_slots, "steps of 5: logits of tokens 0:5"),
    ("snapshots_are_reusable", StateStore, "restore", shared_tails, "at 70 with 0 to replay"),
    ("snapshots_are_reusable", StateStore, "restore", lost_images, "at 64 with 0 to replay"),
    ("pauses_leave_no_trace", StateStore, "restore", lost_images, "paused, a snapshot at 64"),
    ("pauses_leave_no_trace", StateStore, "restore", lost_replays, "at 64 with 2 to replay"),
    ("pauses_leave_no_trace", StateStore, "close", leaked_pages, "page accounting is broken"),
    ("cancelling_leaves_nothing", StateStore, "close", leaked_pages, "page accounting is broken"),
    ("speculation_changes_nothing", Judge, "verify", credulous, "with wrong drafts: token"),
    ("stop_strings_cut_drafts", commit, "preview", overrunning, "not None"),
    ("predicted_drafts_change_nothing", Judge, "verify", credulous, "with own drafts: token"),
    ("drafts_made_ahead_change_nothing", Judge, "accept", trusting, "KeyError"),
    ("drafts_made_ahead_change_nothing", StepBatch, "move", halting, "made ahead: token"),
    ("steps_launched_ahead_change_nothing", BatchBuilder, "fill", forgetful,
     "launched ahead: token"),
    ("stop_strings_cut_predictions", commit, "preview", overrunning, "not None"),
    ("numbers_stay_close", Int8Codec, "decode", loud, "kv int8"),
    ("numbers_stay_close", Fp8Codec, "decode", loud, "kv fp8"),
]


@pytest.mark.parametrize(("check", "owner", "name", "mutate", "words"), MUTANTS)
def test_lab_check_fails(failure_of, monkeypatch, check, owner, name, mutate, words):
    monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))
    assert words in failure_of(f"{check}[reference]")


def test_tilted_kernels(failure_of, monkeypatch):
    monkeypatch.setattr(RowProduct, "__init__", tilted(RowProduct.__init__))
    assert "logits, q4_g64_fp16: " in failure_of("packed_weights_compute")


def test_weights_that_come_back_otherwise(failure_of, monkeypatch):
    add = TinyModel._add
    monkeypatch.setattr(
        TinyModel, "_add", lambda self, writer, name, values, format:
        add(self, writer, name, values.flip(0), format),
    )
    assert "text/token_embedding in fp32: " in failure_of("stored_weights_come_back")
