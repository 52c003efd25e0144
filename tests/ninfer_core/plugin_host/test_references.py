"""Lazy references are checked from source, never by running it."""

from __future__ import annotations

import sys

import pytest

from ninfer_core.api import EmbeddedModel, LazyRef, ModelPackSpec
from ninfer_core.plugin_host.references import bound_names, dead_end, references

SOURCE = """
import os as system
from json import loads
raise RuntimeError("this module must not run")
def function(): local = 1
class Class: pass
A = b = 1
c: int = 2
d: int
if A:
    try: e = 1
    except OSError: f = 2
for g in (): pass
with open("x") as h: pass
"""


@pytest.mark.parametrize("name", [
    "system", "loads", "function", "Class", "Class.method", "A", "b", "c", "e", "f", "g", "h"])
def test_bound_names_are_found_without_running_the_module(site, name):
    site.write("heavy.code", SOURCE)
    assert dead_end(LazyRef(f"heavy.code:{name}"), bound_names) is None
    assert "heavy" not in sys.modules


@pytest.mark.parametrize("name", ["local", "missing", "os"])
def test_unbound_names_are_named(site, name):
    site.write("heavy.code", SOURCE)
    assert dead_end(LazyRef(f"heavy.code:{name}"), bound_names) == (
        f"heavy.code:{name}: heavy.code has no {name!r}")


@pytest.mark.parametrize(
    "path", ["nowhere:x", "heavy.gone:x", "heavy.code.deeper:x", "gone.code:x"])
def test_missing_modules_are_named(site, path):
    site.write("heavy.code", SOURCE)
    assert "there is no module" in dead_end(LazyRef(path), bound_names)


@pytest.mark.parametrize("line", [
    "from os import *", "def __getattr__(name): return 1", "globals().update(x=1)",
    "import sys; sys.modules[__name__].x = 1", "def f():\n    global x"])
def test_a_module_that_may_bind_names_otherwise_gets_the_benefit_of_the_doubt(site, line):
    site.write("heavy.code", line)
    assert dead_end(LazyRef("heavy.code:anything"), bound_names) is None


@pytest.mark.parametrize("path", ["math:sqrt", "_socket:socket", "builtins:int"])
def test_modules_without_source_get_it_too(path):
    assert dead_end(LazyRef(path), bound_names) is None


def test_a_syntax_error_is_raised_where_the_loader_reports_it(site):
    site.write("heavy.code", "def :")
    with pytest.raises(SyntaxError):
        dead_end(LazyRef("heavy.code:x"), bound_names)


def test_references_of_nested_records_are_found():
    model = EmbeddedModel("m", "a:locate", "x==1", "0" * 64, "MIT")
    spec = ModelPackSpec("p", "a:Pack", "a:claim", (model,))
    assert sorted(map(str, references((spec,)))) == ["a:Pack", "a:claim", "a:locate"]
