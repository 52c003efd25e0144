"""Twelve ways in which a plugin can be broken, and a few more.

Found automatically, each is quarantined with one warning and the run goes on; asked for by name, it
stops the start with its cause.
"""

from __future__ import annotations

import logging
import re

import pytest

from ninfer_core.api import AmbiguityError, ModelDescription, NInferError, PluginError
from ninfer_core.plugin_host import choose_pack, choose_profile, load_plugins

MODEL = ModelDescription("artifact", ("LlamaForCausalLM",), {})
IMPORT_LIMIT_S = 1.0
CODEC = """
    @hookimpl
    def ninfer_kv_codecs():
        return [KVCodecSpec(name="{codec}", codec="bad.codec:Codec")]
"""
AT_LOAD = {
    "import error": ("import no_such_module_anywhere", "ModuleNotFoundError.*no_such_module"),
    "exception at import": ("1 / 0", "ZeroDivisionError: division by zero"),
    "error without a text": (
        "class Odd(Exception):\n    def __str__(self): 1 / 0\nraise Odd", "Odd: its text cannot"),
    "error at any question": (
        "del NINFER_API\ndef __getattr__(name): raise ValueError(name)", "ValueError: NINFER_API"),
    "exit call at import": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "wrong type registered": (
        "@hookimpl\ndef ninfer_kernels(): return ['a kernel']", "KernelSpec, it gave str"),
    "nothing returned": ("@hookimpl\ndef ninfer_kernels(): pass", "NoneType.* not iterable"),
    "exception in a hook": ("@hookimpl\ndef ninfer_kernels(): 1 / 0", "ninfer_kernels: ZeroDiv"),
    "bad field of a spec": (
        "@hookimpl\ndef ninfer_kv_codecs(): return [KVCodecSpec('Not A Name', 'a:b')]", "regex"),
    "unknown hook": ("@hookimpl\ndef ninfer_teapots(): return []", "unknown hook 'ninfer_teapots'"),
    "unknown argument": (
        "@hookimpl\ndef ninfer_kernels(colour): return []", r"\{'colour'\} are declared"),
    "slow import": ("import time; time.sleep(1.1)", r"took 1\.\d\d s, more than 1 s"),
    "missing attribute": (CODEC.format(codec="new"), "bad.codec has no 'Codec'"),
    "missing module": (
        CODEC.format(codec="new").replace("bad.codec", "bad.gone"), "no module 'bad.gone'"),
    "torch in plugin.py": ("import torch", "it imports torch"),
    "torch below plugin.py": ("import bad.heavy", "it imports torch"),
    "torch with a shrug": (
        "try:\n    import triton.language\nexcept Exception: pass", "it imports triton"),
    "torch in a hook": (
        "@hookimpl\ndef ninfer_kernels():\n    from torch import nn\n    return []",
        "it imports torch"),
    "name of the core's": (
        CODEC.format(codec="bf16").replace("Codec\"", "Fine\""),
        "kv_codecs 'bf16' is registered 2 times"),
    "one name twice": (
        "@hookimpl\ndef ninfer_kv_codecs():\n"
        "    return [KVCodecSpec('new', 'bad.codec:Fine')] * 2",
        "kv_codecs 'new' is registered 2 times"),
}
HEADERS = {
    "API too new": ("NINFER_API = (2, 0)", r"needs API 2\.0, this core has 1\.0"),
    "API too new by a minor version": ("NINFER_API = (1, 99)", r"needs API 1\.99"),
    "no API version": ("", "NINFER_API must be .* it is None"),
    "malformed API version": ("NINFER_API = '1.0'", "NINFER_API must be"),
}


def install_bad(site, source, header="NINFER_API = (1, 0)"):
    literal = source.replace("{", "{{").replace("}", "}}")
    site.install("bad", literal, header=f"from ninfer_core.api import *\n{header}\n")
    site.write("bad.codec", "class Fine: pass\n")
    site.write("bad.heavy", "from torch.nn import functional\n")


CASES = [
    *(pytest.param(source, "NINFER_API = (1, 0)", why, id=name)
      for name, (source, why) in AT_LOAD.items()),
    *(pytest.param("", header, why, id=name) for name, (header, why) in HEADERS.items()),
]


@pytest.mark.parametrize(("source", "header", "why"), CASES)
class TestBrokenAtLoad:
    def test_found_automatically_it_is_quarantined_and_the_run_goes_on(
        self, site, caplog, find, source, header, why
    ):
        install_bad(site, source, header)
        site.pack("good", "return Claim(50, 'a llama')")
        report = load_plugins(site.selection(import_limit_s=IMPORT_LIMIT_S))

        bad = find(report, "bad")
        assert bad.state == "quarantined"
        assert_explains(bad.reason, why)
        assert_warned_once(caplog, "bad", why)
        assert "new" not in report.registry.kv_codecs
        assert report.registry.kv_codecs["bf16"].provenance.distribution == "ninfer-core"
        assert choose_pack(report, MODEL).spec.name == "good"

    @pytest.mark.parametrize("way", [{"modules": ("bad.plugin",)}, {"names": ("bad",)}])
    def test_asked_for_by_name_it_stops_the_start_with_its_cause(
        self, site, source, header, why, way
    ):
        install_bad(site, source, header)
        with pytest.raises(NInferError) as caught:
            load_plugins(site.selection(import_limit_s=IMPORT_LIMIT_S, **way))
        assert_explains(str(caught.value), why)


def assert_explains(text, why):
    assert re.search(why, text, re.DOTALL), text
    assert "bad-dist 1.0" in text
    assert "--no-plugin bad" in text


def assert_warned_once(caplog, name, why):
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    ours = [text for text in warnings if f"plugin {name} is quarantined" in text]
    assert len(ours) == 1
    assert re.search(why, ours[0], re.DOTALL)


class TestDuplicateNames:
    CODEC = CODEC.format(codec="new").replace("bad.codec:Codec", "builtins:int")

    def install_two(self, site):
        for name in ("first", "second"):
            site.install(name, self.CODEC)

    def test_both_are_quarantined_because_no_order_decides(self, site, caplog, find):
        self.install_two(site)
        report = load_plugins(site.selection())
        for name in ("first", "second"):
            record = find(report, name)
            assert record.state == "quarantined"
            assert isinstance(record.error, AmbiguityError)
            assert "first-dist 1.0" in record.reason and "second-dist 1.0" in record.reason
            assert "--no-plugin first.plugin or --no-plugin second.plugin" in record.reason
        assert "new" not in report.registry.kv_codecs

    def test_leaving_one_out_settles_it(self, site):
        self.install_two(site)
        report = load_plugins(site.selection(blocked=("first-dist",)))
        assert report.registry.kv_codecs["new"].provenance.distribution == "second-dist"

    def test_asked_for_by_name_it_stops_the_start(self, site):
        self.install_two(site)
        with pytest.raises(AmbiguityError, match="kv_codecs 'new' is registered 2 times"):
            load_plugins(site.selection(modules=("second.plugin",)))

    @pytest.mark.parametrize("group", ["ninfer.model_packs", "ninfer.plugins"])
    def test_entry_points_of_one_name_are_seen_in_one_group_and_across_groups(
        self, site, find, group
    ):
        site.install("main", "", "ninfer.plugins", distribution="alpha")
        site.install("main", "", group, distribution="beta")
        report = load_plugins(site.selection())
        records = [record for record in report.records if record.name == "main"]
        assert [record.state for record in records] == ["quarantined"] * 2
        assert "--no-plugin" in records[0].reason
        assert "alpha 1.0" in records[0].reason and "beta 1.0" in records[0].reason
        settled = load_plugins(site.selection(blocked=("alpha",)))
        assert {r.distribution: r.state for r in settled.records if r.name == "main"} == {
            "alpha": "blocked", "beta": "active",
        }

    def test_one_distribution_with_one_name_in_two_groups(self, site):
        site.install("main", "", "ninfer.plugins", distribution="alpha")
        site.install("main", "", "ninfer.model_packs", distribution="alpha")
        report = load_plugins(site.selection())
        assert [r.state for r in report.records if r.name == "main"] == ["quarantined"] * 2


RAISING = [
    "1 / 0", "import sys; sys.exit(1)", "import torch", "return 'yes'", "raise Exception('x')",
]


@pytest.mark.parametrize("body", RAISING)
class TestBrokenAnswers:
    def test_a_claim_that_raises_is_quarantined_and_another_pack_is_chosen(
        self, site, caplog, find, body
    ):
        site.pack("bad", body)
        site.pack("good", "return Claim(50, 'a llama')")
        report = load_plugins(site.selection())
        choice = choose_pack(report, MODEL)
        assert choice.spec.name == "good"
        assert choice.rejected[0][0] == "bad" and "quarantined" in choice.rejected[0][1]
        assert find(report, "bad").state == "quarantined"
        assert "bad" not in report.registry.packs
        assert_warned_once(caplog, "bad", "question to 'bad'")

    @pytest.mark.parametrize("way", [{}, {"modules": ("bad.plugin",)}, {"names": ("bad", "good")}])
    def test_a_claim_of_a_pack_asked_for_stops_the_start(self, site, body, way):
        site.pack("bad", body)
        site.pack("good", "return Claim(50, 'a llama')")
        report = load_plugins(site.selection(**way))
        with pytest.raises(PluginError, match="question to 'bad'"):
            choose_pack(report, MODEL, None if way else "bad")

    def test_a_detection_that_raises_is_quarantined_and_another_profile_is_chosen(
        self, site, caplog, find, body
    ):
        site.profile("bad", body)
        site.profile("good", "return Detection(10, 'a machine')")
        report = load_plugins(site.selection())
        assert choose_profile(report).spec.name == "good"
        assert find(report, "bad").state == "quarantined"
        assert_warned_once(caplog, "bad", "question to 'bad'")

    def test_a_detection_of_a_profile_asked_for_stops_the_start(self, site, body):
        site.profile("bad", body)
        report = load_plugins(site.selection(profile="bad"))
        with pytest.raises(PluginError, match="question to 'bad'"):
            choose_profile(report, "bad")


@pytest.mark.parametrize("kind", ["pack", "profile"])
def test_choosing_what_broke_at_load_gives_its_cause(site, kind):
    site.install("bad", "1 / 0", {"pack": "ninfer.model_packs",
                                  "profile": "ninfer.hardware_profiles"}[kind])
    report = load_plugins(site.selection())
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        if kind == "pack":
            choose_pack(report, MODEL, "bad")
        else:
            choose_profile(report, "bad")


def test_a_profile_that_is_asked_for_and_broken_stops_the_load(site):
    site.install("bad", "1 / 0", "ninfer.hardware_profiles")
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        load_plugins(site.selection(profile="bad"))


def test_a_keyboard_interrupt_is_the_users(site):
    site.install("bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugins(site.selection())


def test_torch_is_refused_whether_the_process_has_it_or_not(site, find):
    import torch

    install_bad(site, "import torch")
    assert "it imports torch" in find(load_plugins(site.selection()), "bad").reason
    import torch.nn  # noqa: F401  # the guard is gone


@pytest.mark.filterwarnings("ignore:Implicit None:DeprecationWarning")
@pytest.mark.parametrize("content", [None, "", "Name: fine\n"])
def test_damaged_metadata_says_nothing_about_the_plugin(site, find, content):
    site.install("fine", "")
    [file] = site.path.glob("fine_dist*/METADATA")
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    record = find(load_plugins(site.selection()), "fine")
    assert record.state == "active"
    assert (record.distribution, record.version) in {("unnamed", "unknown"), ("fine", "unknown")}


def test_what_a_plugin_prints_is_kept_from_stdout(site, capsys, find):
    hook = "@hookimpl\ndef ninfer_kernels():\n    print('hook')\n    return []"
    install_bad(site, f"print('loading')\n{hook}")
    assert find(load_plugins(site.selection()), "bad").state == "active"
    assert capsys.readouterr() == ("", "loading\nhook\n")
