"""Two engines of grammars are told apart by name."""

from __future__ import annotations

import pytest

from ninfer_core.api import AmbiguityError
from ninfer_core.plugin_host import PluginSelection, choose_only, load_plugins

pytest.importorskip("ninfer_xgrammar")


def test_two_engines_are_an_error_that_a_name_settles():
    modules = ("ninfer_constraints.plugin", "ninfer_xgrammar.plugin")
    report = load_plugins(PluginSelection(modules=modules, names=()))
    with pytest.raises(AmbiguityError, match=r"--constraints") as caught:
        choose_only(report, "constraints", "--constraints", None)
    assert "ninfer-constraints" in str(caught.value) and "ninfer-xgrammar" in str(caught.value)
    for name in ("xgrammar", "llguidance"):
        chosen = choose_only(report, "constraints", "--constraints", name)
        assert chosen is not None and chosen.spec.name == name


def test_one_of_them_alone_is_chosen():
    selection = PluginSelection(modules=("ninfer_xgrammar.plugin",), names=())
    chosen = choose_only(load_plugins(selection), "constraints", "--constraints", None)
    assert chosen is not None and chosen.spec.name == "xgrammar"
