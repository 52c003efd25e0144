"""The distributions of the tree as wheels, in an environment that does not see the tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = ("model_packs", "hardware_profiles", "plugins")
CHILDREN = sorted(path.parent for kind in KINDS for path in ROOT.glob(f"{kind}/*/pyproject.toml"))
PROJECTS = [ROOT, *CHILDREN]
REPORT = """
import importlib.util, json, sys
from ninfer_core.plugin_host import load_plugins
records = load_plugins().records
assert "torch" not in sys.modules
print(json.dumps({
    r.distribution: [r.name, r.group, r.state, importlib.util.find_spec(r.module).origin]
    for r in records}))
"""


def config_of(project: Path) -> dict:
    return tomllib.loads((project / "pyproject.toml").read_text())


def package_of(project: Path) -> str:
    [package] = config_of(project)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return package


def is_plugin(project: Path) -> bool:
    """Libraries have no entry points."""
    return "entry-points" in config_of(project)["project"]


def hidden(file: Path) -> bool:
    """Whether it is what tools leave behind."""
    return any(part.startswith((".", "__pycache__")) for part in file.parts)


def run(*command: str | Path, cwd: Path) -> str:
    """Run in an environment without hints to the tree; gives stdout."""
    hints = ("PYTHON", "PIP", "NINFER", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hints)}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """Package -> wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps",
        "--no-build-isolation", "--wheel-dir", folder, *PROJECTS, cwd=folder)
    built = sorted(folder.glob("*.whl"))
    return {package_of(p): w for p in PROJECTS for w in built
            if w.name.startswith(config_of(p)["project"]["name"].replace("-", "_") + "-")}


@pytest.fixture(scope="module")
def clean(wheels, tmp_path_factory) -> Path:
    """``bin`` of an environment with the wheels, and third-party packages by link."""
    root = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=root)
    third_party = root / "third_party"
    third_party.mkdir()
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith(("ninfer", "__pycache__")):
                (third_party / entry.name).symlink_to(entry)
    [site] = (root / "env").glob("lib/python*/site-packages")
    (site / "third_party.pth").write_text(f"{third_party}\n")
    run(sys.executable, "-m", "pip", "--python", root / "env/bin/python", "install", "--quiet",
        "--no-index", "--no-deps", *wheels.values(), cwd=root)
    return root / "env/bin"


def test_there_is_a_wheel_for_every_project_of_the_tree(wheels):
    assert len(wheels) == len(PROJECTS) > 1


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_wheel_holds_its_package_and_nothing_else(wheels, project):
    package = package_of(project)
    wanted = {
        str(file.relative_to(project)) for file in (project / package).rglob("*")
        if file.is_file() and not hidden(file.relative_to(project))
    }
    names = zipfile.ZipFile(wheels[package]).namelist()
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_installed_wheels_are_discovered_from_elsewhere(clean, tmp_path):
    found = json.loads(run(clean / "python", "-c", REPORT, cwd=tmp_path))
    wanted = {
        config["project"]["name"]: [name, group, "active"]
        for config in map(config_of, PROJECTS)
        for group, points in config["project"].get("entry-points", {}).items() for name in points
    }
    wanted["ninfer-core"] = ["core", "core", "active"]
    assert {name: row[:3] for name, row in found.items()} == wanted
    environment = str(clean.parent)
    assert all(row[3].startswith(environment) for row in found.values())


def test_entry_point_names_are_unique_in_the_tree():
    names = [
        name for config in map(config_of, PROJECTS)
        for points in config["project"].get("entry-points", {}).values() for name in points
    ]
    assert len(names) == len(set(names)) > 1


def test_commands_work_from_wheels(clean, tmp_path):
    listed = run(clean / "ninfer", "plugins", cwd=tmp_path)
    for project in (ROOT, *(each for each in CHILDREN if is_plugin(each))):
        assert config_of(project)["project"]["name"] in listed
    for project in PROJECTS:
        for command in config_of(project)["project"].get("scripts", {}):
            assert "usage" in run(clean / command, "--help", cwd=tmp_path).lower()
