"""Cards and recipes: every part is stored as it is published."""

from __future__ import annotations

import pytest

from ninfer_checkpoints.cards import read_card
from ninfer_pack_glm.pack import GlmPack
from ninfer_pack_glm.plugin import CARDS, PACK

CARD_PACKAGE = "ninfer_pack_glm.cards"
FP8, ROWS, NVFP4 = "fp8_e4m3fn_g128_fp32", "fp8_e4m3fn_row_bf16", "nvfp4"
L = "text/layers/3/"
STORED = {  # experts, those of the predictor, shared ones, dense MLP, latents, delta network
    "glm-5.3-flash": (FP8, FP8, FP8, FP8, FP8, "bf16"),
    "glm-5.3-flash-bf16": ("bf16",) * 6,
    "glm-5.3-flash-nvfp4": (NVFP4, "bf16", "bf16", NVFP4, "bf16", "bf16"),
    "glm-5.3-flash-nvfp4-redhat": (NVFP4, NVFP4, "bf16", "bf16", "bf16", "bf16"),
    "glm-5.3-flash-nvfp4-lil": (NVFP4, "bf16", "bf16", "bf16", "bf16", "bf16"),
    "glm-5.3-flash-nvfp4-spark": (NVFP4, NVFP4, FP8, "bf16", FP8, FP8),
    "glm-5.3-flash-compact": (NVFP4, NVFP4, ROWS, ROWS, ROWS, ROWS),
}
PARTS = (f"{L}moe/experts/287/down", "mtp/layers/0/moe/experts/0/gate", f"{L}moe/shared/up",
         "text/layers/2/mlp/down", f"{L}attention/latent", "text/layers/0/kda/query")
PLAIN = (f"{L}moe/router", f"{L}mixer_streams/coefficients", f"{L}attention/key_up",
         f"{L}attention/value_up")


@pytest.fixture(scope="module")
def parameters():
    """Of all kinds of layers, without most experts."""
    config = GlmPack().configure(read_card(CARD_PACKAGE, "glm-5.3-flash").description)
    specs = GlmPack().parameters(config)
    return [each.name for each in specs if each.kind != "direct" and "/experts/1" not in each.name]


@pytest.mark.parametrize("name", STORED)
def test_every_part_is_stored_as_published(name, stored_as):
    found = stored_as(CARD_PACKAGE, name)
    assert tuple(map(found, PARTS)) == STORED[name]
    assert {found(each) for each in PLAIN} == {"bf16"}


def test_the_matrices_of_the_primary_upload_are_those_in_fp8(parameters, stored_as):
    """Experts, dense MLPs, and four of attention in each layer that has it."""
    found = stored_as(CARD_PACKAGE, "glm-5.3-flash")
    kinds = {name.rpartition("/")[2] for name in parameters
             if found(name) == FP8 and "/attention/" in name}
    assert kinds == {"query_down", "query_up", "latent", "output"}


def test_all_published_are_there():
    assert CARDS.keys() == STORED.keys() == {card.name for card in PACK.cards}


@pytest.mark.parametrize("name", STORED)
def test_all_are_the_same_model(name):
    card = read_card(CARD_PACKAGE, name)
    config = GlmPack().configure(card.description)
    assert config.index_kpool == 4  # 16 is transformers' default
    assert len(config.ordinals("linear_attention")) == 34 and config.mtp
    assert (card.sampling["default"].temperature, card.sampling["default"].top_p) == (1.0, 0.95)
