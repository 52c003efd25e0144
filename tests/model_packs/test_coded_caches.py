"""Models of sparse attention on coded caches: drafts, pauses, reuse and a new process leave every
bit as it is. How close the numbers are, the conformance kit says."""

from __future__ import annotations

import pytest

from ninfer_conformance import histories, predicting, serving
from ninfer_conformance.lab import lab
from ninfer_conformance.subject import find_subject
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_fixtures.served import LENGTHS, serve
from ninfer_fixtures.tiny import TinyModel, tiny_resources

PACKS = ("flash_next", "glm")
CHECKS = (
    histories.rejected_drafts_leave_no_trace, histories.snapshots_are_reusable,
    serving.reuse_changes_nothing, serving.pauses_change_nothing,
    predicting.predictions_survive_reuse,
)


@pytest.fixture(scope="module")
def report():
    names = *(f"pack_{pack}" for pack in PACKS), "ops", "profile_cpu", "drafting", "disk_tier"
    modules = tuple(f"ninfer_{name}.plugin" for name in names)
    return load_plugins(PluginSelection(modules=modules, names=()))


@pytest.fixture(scope="module", params=[("flash_next", "int8"), ("glm", "fp8")], ids="-".join)
def coded(report, request):
    pack, codec = request.param
    return lab(find_subject(report, pack), "profile").with_kv(codec)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_is_changed(coded, check):
    assert coded.tolerance == "exact"
    check(coded)


@pytest.mark.parametrize(("pack", "codec"), [("flash_next", "fp8"), ("glm", "int8")])
def test_another_process_goes_on_from_what_one_has_kept(report, tmp_path, pack, codec):
    """With drafts, from the pool through host memory to files and back."""
    subject, path = find_subject(report, pack), tmp_path / "tiny.ninfer"
    model = TinyModel(subject.model, subject.implementation.parameters(subject.config),
                      report.registry)
    model.write(path, model.random_values(), texts=tiny_resources())
    plain = serve(path, report, kv_dtype=codec, prefix_cache=False)
    kept = {"disk_cache": str(tmp_path / "states"), "host_capacity": 1 << 20}
    for reused in ("", "disk"):
        served = serve(path, report, kv_dtype=codec, spec="mtp", draft_tokens=3, **kept)
        assert served.tokens == plain.tokens and served.drafted > 0
        assert {*served.tiers} == {"", *([reused] if reused else [])}
    assert served.tiers == ["" if length < 65 else "disk" for length in LENGTHS]
