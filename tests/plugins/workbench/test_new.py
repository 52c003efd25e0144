"""Skeletons: they pass the conformance kit as they are written, and overwrite nothing."""

from __future__ import annotations

import sys
import tomllib

import pytest

from ninfer_core.api import ConfigError
from ninfer_core.cli.main import main
from ninfer_workbench.new import TEMPLATES, write_skeleton

KINDS = ("model-pack", "hardware-profile", "plugin")


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_is_complete(kind, tmp_path):
    root = write_skeleton(kind, "my-thing", tmp_path)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    [(group, points)] = project["project"]["entry-points"].items()
    [package] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert group == {"plugin": "ninfer.plugins"}.get(kind, f"ninfer.{kind.replace('-', '_')}s")
    assert points == {"my_thing": f"{package}.plugin"}
    assert f"{package}/plugin.py" in files(root)
    assert len(files(root)) == len(files(TEMPLATES / kind))
    for path in files(root):
        text = (root / path).read_text()
        assert "$" not in text
        assert max(map(len, text.splitlines()), default=0) <= 100
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize(
    ("kind", "levels"), [("model-pack", "4"), ("hardware-profile", "1"), ("plugin", "1")]
)
def test_a_skeleton_passes_conformance(kind, levels, skeletons, capsys, monkeypatch):
    monkeypatch.setenv("NINFER_PLUGINS", "")
    module = skeletons[kind]
    name = module if kind == "plugin" else f"skeleton_{kind.rpartition('-')[2]}"
    modules = ("-p", module, "-p", "ninfer_conformance.plugin")
    code = main(["conformance", name, "--level", levels, *modules])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "L0     loads" in out and ("L1" in out or kind == "plugin")


def test_what_exists_is_not_touched(tmp_path):
    write_skeleton("plugin", "mine", tmp_path)
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="will not overwrite"):
        write_skeleton("model-pack", "mine", tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["1st", "Mine", "../up", "a b", "", "-x", "a.b"])
def test_unusable_names_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="unusable name"):
        write_skeleton("plugin", name, tmp_path)
    assert files(tmp_path) == []


def test_the_command_says_what_to_do_next(tmp_path, capsys):
    words = ["new", "plugin", "mine", "--dir", str(tmp_path), "-p", "ninfer_workbench.plugin"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{sys.executable} -m pip install -e {tmp_path / 'mine'}" in out
    assert "ninfer conformance mine" in out
