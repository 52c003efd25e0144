"""Subjects, results and comparisons, and the checks of plugins and profiles."""

from __future__ import annotations

import random
from types import SimpleNamespace
from unittest import SkipTest

import pytest
import torch
from attrs import evolve

from ninfer_conformance import command
from ninfer_conformance.lab import reference_kernels
from ninfer_conformance.levels import CHECKS, Check, run_conformance
from ninfer_conformance.subject import Subject, find_subject
from ninfer_conformance.tolerances import require_close
from ninfer_core.api import (
    ConfigError,
    Detection,
    KernelSpec,
    MachineFigures,
    ModelPackSpec,
    NInferError,
    OpContract,
    UnsupportedError,
)
from ninfer_core.cli.options import Parser
from ninfer_core.plugin_host import PluginRecord, PluginReport

pytest_plugins = "pytester"
RECORD = PluginRecord("box", "-p", "box", "1", "ninfer_core.api.version", state="active")
FIGURES = MachineFigures("box", 100, 1.0, {"float32": 1.0}, 1e-6, "measured")


def plugin(**changes):
    record = evolve(RECORD, **changes)
    return Subject("box", "plugins", record, PluginReport((record,)))


def profile(detect=lambda: Detection(1, "here"), figures=FIGURES, budget=100):
    made = SimpleNamespace(
        compute_dtype="float32", figures=lambda: figures, memory_budget=lambda: budget
    )
    spec = SimpleNamespace(detect=SimpleNamespace(load=lambda: detect))
    return evolve(plugin(), kind="profiles", spec=spec, implementation=made)


def pack(locate):
    model = SimpleNamespace(name="box", locate=SimpleNamespace(load=lambda: locate))
    return evolve(plugin(), kind="packs", spec=SimpleNamespace(embedded=(model,)))


def absent(fix):
    def locate():
        raise NInferError("it is absent", fix=fix)

    return locate


def moody():
    return Detection(random.randint(1, 10**9), "moody")


def importing():
    import torch  # noqa: F401


DEAD_END = {"packs": (ModelPackSpec("box", "box.nowhere:Pack", "box.nowhere:claim"),)}


@pytest.mark.parametrize("subject", [plugin(), profile()])
def test_what_is_sound_passes(subject):
    results = [each.result(subject) for each in CHECKS[subject.kind]]
    assert [each.status for each in results if each.check != "distribution_is_sound"] == [
        "passed" for _ in results[1:]
    ]


@pytest.mark.parametrize(
    ("name", "subject", "words"),
    [
        ("loads", plugin(state="quarantined", reason="it is broken"), "quarantined: it is broken"),
        ("imports_without_torch", plugin(module="no.such.module"), "ModuleNotFoundError"),
        ("references_resolve", plugin(specs=DEAD_END), "box.nowhere"),
        ("distribution_is_sound", plugin(group="ninfer.plugins"), "0 entry points are named 'box'"),
        ("detects_a_machine", profile(detect=lambda: None), "no Detection"),
        ("detects_a_machine", profile(detect=moody), "asked twice"),
        ("detects_a_machine", profile(detect=importing), "imports torch"),
        ("figures_are_sane", profile(figures=evolve(FIGURES, launch_s=0.0)), "not positive"),
        ("figures_are_sane", profile(figures=evolve(FIGURES, flops={"bfloat16": 1.0})), "missing"),
        ("figures_are_sane", profile(budget=0), "the budget is 0"),
        ("figures_are_sane", profile(budget=10**6), "the budget is 1000000"),
        ("finds_embedded_models", pack(lambda: "/no/such/file"), "does not exist"),
        ("finds_embedded_models", pack(absent(fix="")), "has no fix"),
    ],
)
def test_what_is_not_fails(name, subject, words):
    [check] = [each for each in CHECKS[subject.kind] if each.name == name]
    result = check.result(subject)
    assert result.status == "failed"
    assert words in result.detail


def test_embedded_models_may_be_absent():
    [check] = [each for each in CHECKS["packs"] if each.name == "finds_embedded_models"]
    assert check.result(pack(absent(fix="ninfer fetch box"))).status == "passed"


def raising(error):
    def function(subject):
        raise error

    return Check("L9", "raises", function).result(plugin())


def test_results_say_what_was_raised_and_where():
    assert raising(SkipTest("not here")).status == "skipped"
    assert raising(AssertionError("1 is not 2")).detail == "1 is not 2"
    failed = raising(ValueError("odd"))
    assert failed.status == "failed"
    assert "ValueError('odd')" in failed.detail
    assert "test_kit.py:" in failed.detail


def test_a_check_gives_the_threads_back():
    before = torch.get_num_threads()
    seen = []
    Check("L9", "threads", lambda subject: seen.append(torch.get_num_threads()))(plugin())
    assert (seen, torch.get_num_threads()) == ([1], before)


def test_comparisons_name_the_worst_element():
    expected = torch.arange(6.0).view(2, 3)
    require_close(expected.clone(), expected, "it")
    off = expected.clone()
    off[0, 1] += 1e-3
    off[1, 2] -= 0.5
    with pytest.raises(AssertionError, match=r"^it: 2 of 6 .* at \(1, 2\): 4.5 instead of 5 .*0.5"):
        require_close(off, expected, "it", "fp32")
    with pytest.raises(AssertionError, match=r"shape|instead of"):
        require_close(expected[:1], expected, "it")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_is_close_to_nan(value):
    actual = torch.tensor([1.0, value])
    with pytest.raises(AssertionError, match="1 of 2"):
        require_close(actual, torch.ones(2), "it", "fp8_kv")
    if value != value:
        with pytest.raises(AssertionError, match="1 of 2"):
            require_close(actual, actual, "it", "fp8_kv")


def test_levels_can_be_chosen(toy):
    results = run_conformance("toy", toy.report, levels=("L1",))
    assert {each.level for each in results} == {"L1"}
    assert {each.status for each in results} == {"passed"}


def test_the_command_takes_the_levels_that_there_are():
    parser = Parser("ninfer conformance", "")
    command.options(parser)
    highest = max(int(check.level[1:]) for checks in CHECKS.values() for check in checks)
    assert parser.parse_args(["toy"]).level == highest
    assert parser.parse_args(["toy", "--level", str(highest)]).level == highest
    with pytest.raises(ConfigError, match="--level"):
        parser.parse_args(["toy", "--level", str(highest + 1)])


def test_a_plugin_is_found_by_module_and_gets_the_checks_of_packaging(toy):
    results = run_conformance("ninfer_pack_toy.plugin", toy.report)
    assert {each.level for each in results} == {"L0"}


def test_an_unknown_name_is_an_error(toy):
    with pytest.raises(UnsupportedError, match="nothing is named 'tyo'"):
        find_subject(toy.report, "tyo")


def test_a_module_that_imports_torch(tmp_path, monkeypatch):
    (tmp_path / "heavy.py").write_text("import sys; sys.modules['torch'] = sys")
    monkeypatch.syspath_prepend(tmp_path)
    [check] = [each for each in CHECKS["plugins"] if each.name == "imports_without_torch"]
    assert check.result(plugin(module="heavy")).detail == "heavy imports torch"


SUITE = """
from ninfer_conformance.suite import PackConformance

class TestToy(PackConformance):
    plugin, name, levels = "ninfer_pack_toy.plugin", "toy", ("L0", "L4")

    def test_of_its_own(self):
        assert self.subject().name == "toy"
"""


def test_third_parties_subclass_the_suite(pytester):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-v")
    checks = [check for check in CHECKS["packs"] if check.level in ("L0", "L4")]
    result.assert_outcomes(passed=len(checks), skipped=1)  # one is skipped, one is the suite's own
    result.stdout.fnmatch_lines(["*TestToy::test_conformance?L4-text_round_trips? PASSED*"])


def test_a_packs_own_kernels_are_no_references_where_there_is_a_contract():
    """Else one that is wrong would be held against itself."""
    contracts = {op: OpContract(op, (), (), (), "some.ops:bind") for op in ("own.norm", "linear")}
    specs = [
        *(each.reference_kernel() for each in contracts.values()),
        KernelSpec("own.norm", "own.fast", "own.ops:a"),
        KernelSpec("own.gelu", "own.gelu", "own.ops:b"),
        KernelSpec("linear", "cpu.linear", "cpu:linear"),
    ]
    kernels = {each.name: SimpleNamespace(
        spec=each, provenance=SimpleNamespace(distribution=each.name.partition(".")[0])
    ) for each in specs}
    registry = SimpleNamespace(contracts=contracts, kernels=kernels)
    subject = SimpleNamespace(
        report=SimpleNamespace(registry=registry), record=SimpleNamespace(distribution="own"))
    assert reference_kernels(subject).keys() == {
        "reference.own.norm", "reference.linear", "own.gelu"}
