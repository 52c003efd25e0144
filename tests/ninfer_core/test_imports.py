"""The floors of the house: imports run downwards only, in no circle, and start without torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "ninfer_core"
FLOORS = {
    "api": 1,
    "plugin_host": 2, "artifact": 2, "state": 2, "ops": 2,
    "sampling": 3, "text": 3, "config": 3,
    "speculation": 4,
    "engine": 5,
    "cli": 6,
}
SAME_FLOOR = {("ops", "artifact"), ("ops", "state"), ("plugin_host", "ops")}
"""Arrows within a floor; there is none in the other direction."""
CHILDREN = {
    "model_packs": {"api", "ops", "artifact", "state", "text"},
    "hardware_profiles": {"api", "ops", "artifact", "state"},
    "plugins": FLOORS.keys(),
}
"""What the distributions of a directory may import of the core."""
PROJECTS = sorted(
    path.parent for each in CHILDREN for path in ROOT.glob(f"{each}/*/pyproject.toml"))
MAX_CORE_LINES = 9_000
MAX_PACK_LINES = 900
"""Of a model pack; and of a library that several stand on."""


def modules_of(root: Path, package: str) -> dict[str, Path]:
    """Dotted name -> file of every module of a package below ``root``."""
    files = (root / package).rglob("*.py")
    names = {file: ".".join(file.relative_to(root).with_suffix("").parts) for file in files}
    return {name.removesuffix(".__init__"): file for file, name in names.items()}


def imports_of(module: str, file: Path) -> set[str]:
    """Absolute names a module imports, those for type checkers only left out."""
    base = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        seen = ast.Module(child.orelse, []) if checked else child
        yield seen
        yield from statements(seen)


def owner(name: str, modules: dict[str, Path]) -> str:
    """The module that an imported name is, or is in."""
    return name if name in modules else name.rpartition(".")[0]


def core_packages(names: set[str]) -> set[str]:
    parts = (name.split(".") for name in names if name.startswith("ninfer_core."))
    return {part[1] for part in parts} & FLOORS.keys()


def config_of(project: Path) -> dict:
    return tomllib.loads((project / "pyproject.toml").read_text())


def package_of(project: Path) -> str:
    """The import package of a distribution of the tree."""
    [package] = config_of(project)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return str(package)


def plugins_of(project: Path) -> list[str]:
    """Its plugin modules; a distribution without any is a library."""
    groups = config_of(project)["project"].get("entry-points", {})
    return [module for group in groups.values() for module in group.values()]


def libraries_of(project: Path) -> list[Path]:
    """The libraries that a distribution may import: those of its directory."""
    return [each for each in LIBRARIES if each.parent == project.parent and each != project]


def imported_packages(project: Path) -> set[str]:
    files = modules_of(project, package_of(project)).items()
    names = (name for module, file in files for name in imports_of(module, file))
    return {name.partition(".")[0] for name in names}


LIBRARIES = [project for project in PROJECTS if not plugins_of(project)]
PLUGINS = [project for project in PROJECTS if project not in LIBRARIES]
MODULES = modules_of(ROOT, "ninfer_core")
IMPORTS = {name: imports_of(name, file) for name, file in MODULES.items()}


def test_what_counts_as_an_import(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "import a.b\nfrom . import c\nfrom ..d import e\nif TYPE_CHECKING:\n    import f\n"
        "else:\n    import g\ndef h():\n    from i import j\n")
    assert imports_of("x.y.module", file) == {"a.b", "x.y.c", "x.d.e", "g", "i.j"}


def test_every_package_of_the_core_has_a_floor():
    assert {path.parent.name for path in CORE.glob("*/__init__.py")} == FLOORS.keys()


def test_imports_of_the_core_run_downwards():
    upward = []
    for module, names in IMPORTS.items():
        if module == "ninfer_core":
            continue
        own = module.split(".")[1]
        for other in core_packages(names) - {own}:
            if FLOORS[other] >= FLOORS[own] and (own, other) not in SAME_FLOOR:
                upward.append(f"{module} imports {other}")
    assert upward == []


def test_there_is_no_circle():
    assert_no_circle(MODULES)


def assert_no_circle(modules: dict[str, Path]) -> None:
    graph = {
        name: {owner(each, modules) for each in imports_of(name, file)} & modules.keys() - {name}
        for name, file in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name):], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: f"{path.parent.name}/{path.name}")
class TestDistributions:
    def test_it_stands_on_its_floors_alone(self, project):
        allowed = CHILDREN[project.parent.name]
        for module, file in modules_of(project, package_of(project)).items():
            assert core_packages(imports_of(module, file)) <= allowed, module

    def test_it_imports_libraries_of_its_directory_at_most(self, project):
        others = {package_of(other): other for other in PROJECTS if other != project}
        imported = {others[name] for name in imported_packages(project) & others.keys()}
        assert imported <= {*libraries_of(project)}
        declared = " ".join(config_of(project)["project"]["dependencies"])
        for library in imported:
            assert config_of(library)["project"]["name"] in declared

    def test_it_has_no_circle(self, project):
        assert_no_circle(modules_of(project, package_of(project)))

    def test_the_core_does_not_name_it(self, project):
        word = re.compile(rf"\b{package_of(project)}\b")
        naming = [name for name, file in MODULES.items() if word.search(file.read_text())]
        assert naming == []


@pytest.mark.parametrize("project", PLUGINS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_plugin_modules_start_without_torch(project):
    path = [str(each) for each in (ROOT, project, *libraries_of(project))]
    assert_starts_without_torch(*plugins_of(project), path=path)


def test_libraries_do_not_stand_in_a_circle():
    graph = {package_of(each): imported_packages(each) for each in LIBRARIES}
    while free := [name for name, others in graph.items() if not others & graph.keys() - {name}]:
        graph = {name: others for name, others in graph.items() if name not in free}
    assert not graph


@pytest.mark.parametrize("module", [
    "ninfer_core.api", "ninfer_core.plugin_host", "ninfer_core.cli.main",
    "ninfer_core.plugin_host.builtin",
])
def test_the_core_starts_without_torch(module):
    assert_starts_without_torch(module, path=[str(ROOT)])


def assert_starts_without_torch(*modules: str, path: list[str]) -> None:
    code = (
        "import importlib, sys\n"
        f"sys.path[:0] = {path!r}\n"
        f"for module in {modules!r}: importlib.import_module(module)\n"
        "print(*sorted({'torch', 'triton', 'numba', 'transformers'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def code_lines(file: Path) -> int:
    """Lines that are code: no blanks, comments or docstrings."""
    text = file.read_text()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            docs.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in docs for number, line in lines)


def test_what_counts_as_code(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""Doc."""\n\n# why\ndef f():\n    """Doc\n    more."""\n    return 1  # 1\n')
    assert code_lines(file) == 2


def test_the_core_is_small():
    assert sum(map(code_lines, MODULES.values())) < MAX_CORE_LINES


@pytest.mark.parametrize(
    "project", [each for each in PROJECTS if each.parent.name == "model_packs"],
    ids=lambda path: path.name,
)
def test_a_pack_is_small(project):
    files = (project / package_of(project)).rglob("*.py")
    assert sum(map(code_lines, files)) < MAX_PACK_LINES


def test_no_package_of_the_tree_is_without_a_distribution():
    """A directory that set-up, wheels and these tests would all pass over."""
    folders = {path for each in CHILDREN for path in (ROOT / each).iterdir() if path.is_dir()}
    visible = {path for path in folders if any(path.rglob("*.py"))}
    assert visible == set(PROJECTS)
