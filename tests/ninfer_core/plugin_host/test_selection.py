"""Which plugins load: NINFER_PLUGINS, --no-plugin, -p and --profile."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ninfer_core.api import ConfigError, PluginError, UnsupportedError
from ninfer_core.plugin_host import PluginSelection, choose_profile, load_plugins

CODEC = """
    @hookimpl
    def ninfer_kv_codecs():
        return [KVCodecSpec(name="{name}", codec="builtins:int")]
"""


@pytest.mark.parametrize(("text", "names"), [
    ("", ()), (" , ", ()), ("a", ("a",)), ("a, b,c", ("a", "b", "c")),
])
def test_names_of_the_environment(text, names):
    assert PluginSelection.from_environment({"NINFER_PLUGINS": text}).names == names


def test_without_the_variables_everything_may_load():
    selection = PluginSelection.from_environment({}, blocked=("x",))
    assert (selection.names, selection.blocked, selection.import_limit_s) == (None, ("x",), 2.0)


def test_the_import_limit_is_a_number():
    limited = PluginSelection.from_environment({"NINFER_IMPORT_LIMIT_S": "0.5"})
    assert limited.import_limit_s == 0.5
    with pytest.raises(ConfigError, match="'soon'"):
        PluginSelection.from_environment({"NINFER_IMPORT_LIMIT_S": "soon"})


def test_names_restrict_to_themselves(site, find):
    site.install("one", CODEC)
    site.install("two", CODEC)
    report = load_plugins(site.selection(names=("one",)))
    assert find(report, "one").state == "active"
    assert find(report, "two").state == "not-selected"
    assert find(report, "two").reason == "not in NINFER_PLUGINS"
    assert "one.plugin" in sys.modules and "two.plugin" not in sys.modules
    assert "bf16" in report.registry.kv_codecs, "the core always loads"


def test_no_names_load_nothing_but_the_core(site):
    site.install("one", "1 / 0")
    report = load_plugins(site.selection(names=()))
    assert [record.name for record in report.records if record.state == "active"] == ["core"]


def test_a_name_that_is_not_installed_stops_the_start(site):
    with pytest.raises(PluginError, match="no plugin 'gone' is installed"):
        load_plugins(site.selection(names=("gone",)))


@pytest.mark.parametrize("name", ["one", "one-dist", "one.plugin"])
def test_a_plugin_is_blocked_by_entry_point_distribution_or_module(site, find, name):
    site.install("one", "1 / 0")
    report = load_plugins(site.selection(blocked=(name,)))
    assert find(report, "one").state == "blocked"


def test_a_blocked_name_that_nothing_has_is_warned_of(site, caplog):
    site.install("one", CODEC)
    load_plugins(site.selection(blocked=("onne", "one", "one.plugin", "xyzzy")))
    assert sorted(record.getMessage() for record in caplog.records) == [
        "--no-plugin onne leaves nothing out: no plugin has that name; did you mean one?",
        "--no-plugin xyzzy leaves nothing out: no plugin has that name",
    ]


def test_a_loose_module_loads_from_the_working_directory(site, tmp_path, monkeypatch, find):
    site.write("here.loose", "from ninfer_core.api import *\nNINFER_API = (1, 0)\n"
               "@hookimpl\ndef ninfer_kv_codecs(): return [KVCodecSpec('loose', 'loose:Codec')]\n"
               "class Codec: pass\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path / "here")
    report = load_plugins(site.selection(modules=("loose",)))
    record = find(report, "loose")
    assert (record.state, record.group, record.version) == ("active", "-p", "uninstalled")
    report.registry.kv_codecs["loose"].spec.codec.load()


def test_a_loose_module_that_is_missing_stops_the_start(site):
    with pytest.raises(PluginError, match="No module named 'nowhere'"):
        load_plugins(site.selection(modules=("nowhere",)))


def test_an_installed_plugin_given_with_p_loads_once(site, find):
    site.install("one", CODEC)
    report = load_plugins(site.selection(modules=("one.plugin",), names=()))
    assert find(report, "one").state == "active"
    assert len(report.records) == 2 + len([r for r in report.records if r.state == "blocked"])


def test_with_a_profile_no_other_profile_is_imported(site, find):
    site.profile("mine", "return Detection(None, 'not here')")
    site.profile("other", "return Detection(100, 'here')")
    report = load_plugins(site.selection(profile="mine"))
    assert "mine.plugin" in sys.modules and "other.plugin" not in sys.modules
    assert find(report, "other").reason == "--profile mine"
    assert choose_profile(report, "mine").reason == "asked for with --profile; not here"
    with pytest.raises(PluginError, match="not-selected: --profile mine"):
        choose_profile(report, "other")


def test_an_unknown_profile_is_named_with_the_known_ones(site):
    site.profile("mine", "return Detection(1, '')")
    with pytest.raises(UnsupportedError, match="--profile gone is unknown"):
        choose_profile(load_plugins(site.selection(profile="gone")), "gone")


def test_a_profile_has_the_name_of_its_entry_point(site, find):
    site.profile("mine", "return Detection(1, '')")
    site.write("mine.plugin", (site.path / "mine/plugin.py").read_text().replace(
        'name="mine"', 'name="yours"'))
    record = find(load_plugins(site.selection()), "mine")
    assert record.state == "quarantined" and "name of its entry point" in record.reason


def test_loading_imports_no_torch(site):
    site.install("heavy", "import torch")
    site.install("light", CODEC)
    code = (
        "import sys; from ninfer_core.plugin_host import *; "
        "report = load_plugins(PluginSelection(names=('light',))); "
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules; "
        "report = load_plugins(PluginSelection()); assert 'torch' not in sys.modules; "
        "print(*(f'{r.name}:{r.state}' for r in report.records))"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True, text=True, check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "light:active" in run.stdout and "heavy:quarantined" in run.stdout
    assert run.stderr.count("plugin heavy is quarantined") == 1, "visible without set-up of logging"
