"""SmolLM2 itself: the same bits in any company, from kept states and after pauses. A few cases each
time; all of them with the profile ``soak`` of hypothesis."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import settings

from ninfer_conformance import serving
from ninfer_conformance.lab import Lab, profile_kernels
from ninfer_conformance.subject import find_subject
from ninfer_convert.conversion import convert
from ninfer_convert.source import open_source
from ninfer_pack_smollm2.embedded import locate
from ninfer_pack_smollm2.pack import LlamaPack

IS_SOAK = settings.get_current_profile_name() == "soak"


@pytest.fixture(scope="module")
def lab(plugins, load, tmp_path_factory):
    """On the kernels of the CPU's profile, all of which are batch-invariant."""
    path = tmp_path_factory.mktemp("smollm2") / "model.ninfer"
    convert(locate(), path, pack=LlamaPack(), registry=plugins.registry)
    source = open_source(locate())
    subject = evolve(
        find_subject(plugins, "smollm2"), model=source.description, resources=source.resources)
    made = Lab(subject, profile_kernels(subject), load(path))
    assert made.tolerance == "exact"
    return made


def test_requests_do_not_meet(lab):
    serving.requests_do_not_meet(lab, range(2, 9) if IS_SOAK else [8])


def test_drafts_change_nothing(lab):
    serving.speculation_changes_nothing(lab, ["right", "wrong", "mixed"] if IS_SOAK else ["mixed"])


def test_reuse_changes_nothing(lab):
    serving.reuse_changes_nothing(lab, range(-2, 3) if IS_SOAK else [0])


def test_turns_go_on(lab):
    serving.turns_go_on(lab, range(-2, 3) if IS_SOAK else [1])


def test_pauses_change_nothing(lab):
    serving.pauses_change_nothing(lab, range(1, 7) if IS_SOAK else [2, 5])
