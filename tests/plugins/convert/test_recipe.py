"""Recipes as data."""

from __future__ import annotations

import pytest

from ninfer_convert.recipe import load_recipe
from ninfer_core.api import AmbiguityError, ConfigError, StorageChoice


def test_a_file_is_read_in_order(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[store]]\npattern = "*/mlp/*"\nformat = "q4_g64_fp16"\nlayout = "row_split_k128_v1"\n'
        '[[store]]\npattern = "*"\n'
    )
    expected = (StorageChoice("*/mlp/*", "q4_g64_fp16", "row_split_k128_v1"), StorageChoice("*"))
    assert load_recipe(str(path)) == expected


@pytest.mark.parametrize(("name", "format_name"), [("bf16", "bf16"), ("q8", "q8_g32_fp16")])
def test_built_in_recipes(name, format_name):
    assert load_recipe(name) == (StorageChoice("*", format_name),)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of recipes, as a pack has it."""
    folder = tmp_path / "some_pack_recipes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "mixed.toml").write_text('[[store]]\npattern = "*"\nactivations = "AllowA4"\n')
    (folder / "q8.toml").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    return "some_pack_recipes"


def test_a_pack_brings_recipes(package):
    assert load_recipe("mixed", package) == (StorageChoice("*", activations="AllowA4"),)
    assert load_recipe("bf16", package) == (StorageChoice("*", "bf16"),)
    with pytest.raises(ConfigError, match=r"no such recipe.*: bf16, mixed, q8$"):
        load_recipe("__init__", package)


def test_two_recipes_of_one_name_are_ambiguous(package):
    with pytest.raises(AmbiguityError, match=r"q8.*ninfer_convert\.recipes and some_pack_recipes"):
        load_recipe("q8", package)


def test_a_package_that_is_absent_is_named():
    with pytest.raises(ConfigError, match="some_absent_recipes"):
        load_recipe("mixed", "some_absent_recipes")


@pytest.mark.parametrize("name", ["q3", "", "../q8", "x" * 400])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"no such recipe.*: bf16, q8"):
        load_recipe(name)


@pytest.mark.parametrize(
    "text",
    [
        "store = ", "", "[[store]]\nformat = 'bf16'", "[[store]]\npattern = 'x'\nformt = 'bf16'",
        "store = 5", "# \xff", "name = 'x'\n[[store]]\npattern = 'x'",
        "[[store]]\npattern = '*'\nactivations = 'A4'",
    ],
)
def test_malformed_recipes_are_refused(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text, "latin-1")
    with pytest.raises(ConfigError, match="malformed recipe"):
        load_recipe(str(path))
