"""Cards and recipes of all packs that have any."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

import pytest

from ninfer_checkpoints.cards import read_card
from ninfer_pack_flash_next.plugin import PACK as FLASH_NEXT
from ninfer_pack_glm.plugin import PACK as GLM
from ninfer_pack_qwen_dense.plugin import PACK as DENSE
from ninfer_pack_qwen_moe.plugin import PACK as MOE

PACKS = (DENSE, MOE, FLASH_NEXT, GLM)
CARDS = {card.name: (pack, card) for pack in PACKS for card in pack.cards}


def read(name):
    """The implementation of a card's pack, the package of the card, and the card."""
    pack, card = CARDS[name]
    package = card.outline.path.partition(":")[0]
    return pack.pack.load()(), package, read_card(package, name)


@cache
def projections(pack, config):
    """Names of parameters that recipes decide, with one expert of each bank."""
    names = (each.name for each in pack().parameters(config) if each.kind != "direct")
    return [name for name in names if "/experts/" not in name or "/experts/0/" in name]


@pytest.mark.parametrize("name", CARDS)
def test_every_choice_of_a_recipe_decides_something(name):
    pack, _, card = read(name)
    patterns = [each.pattern for each in card.recipe]
    decided = {next(each for each in patterns if fnmatchcase(parameter, each))
               for parameter in projections(type(pack), pack.configure(card.description))}
    assert decided == {*patterns}


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_recipes_and_cards_belong_together(pack):
    stems = {file.name.removesuffix(".toml") for file in resources.files(pack.recipes).iterdir()
             if file.name.endswith(".toml")}
    files = (resources.files(read(card.name)[1]) / f"{card.name}.toml" for card in pack.cards)
    assert {tomllib.loads(file.read_text())["recipe"] for file in files} == stems


@pytest.mark.parametrize("name", CARDS)
def test_outlines_are_those_of_the_cards(name):
    assert CARDS[name][1].outline.load().args[-1] == name
