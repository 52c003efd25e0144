"""Cards and recipes: every part is stored as it is published."""

from __future__ import annotations

import pytest
from attrs import evolve

from ninfer_checkpoints.cards import read_card
from ninfer_pack_flash_next.pack import FlashNextPack
from ninfer_pack_flash_next.plugin import CARDS, PACK

CARD_PACKAGE = "ninfer_pack_flash_next.cards"
FP8, ROWS, NVFP4 = "fp8_e4m3fn_g128_fp32", "fp8_e4m3fn_row_bf16", "nvfp4"
EXPERT, MTP_EXPERT = "text/layers/1/moe/experts/511/down", "mtp/layers/0/moe/experts/0/gate"
TABLE, QUERY = "text/layers/1/ngram/table", "text/layers/3/attention/query"
STORED = {  # experts, those of the predictor, n-grams, attention
    "qwen3.8-flash-next-bf16": ("bf16", "bf16", "bf16", "bf16"),
    "qwen3.8-flash-next-fp8": (FP8, FP8, ROWS, "bf16"),
    "qwen3.8-flash-next-nvfp4": (NVFP4, FP8, ROWS, "bf16"),
    "qwen3.8-flash-next-nvfp4-radixark": (NVFP4, "bf16", ROWS, "bf16"),
    "qwen3.8-flash-next-nvfp4-inferact": (NVFP4, NVFP4, "bf16", "bf16"),
    "qwen3.8-flash-next-nvfp4-mxfp8": (NVFP4, NVFP4, NVFP4, "bf16"),
    "qwen3.8-flash-next-compact": (NVFP4, FP8, ROWS, ROWS),
}
PLAIN = (  # whatever the recipe
    "text/layers/0/moe/router", "text/layers/0/moe/shared_score", "text/layers/0/gdn/a_projection",
    "text/layers/3/attention/index/key", "mtp/layers/0/attention/index/query",
)


@pytest.mark.parametrize("name", STORED)
def test_every_part_is_stored_as_published(name, stored_as):
    found = stored_as(CARD_PACKAGE, name)
    assert tuple(map(found, (EXPERT, MTP_EXPERT, TABLE, QUERY))) == STORED[name]
    assert {found(each) for each in PLAIN} == {"bf16"}


def test_all_published_are_there():
    assert CARDS.keys() == STORED.keys() == {card.name for card in PACK.cards}


@pytest.mark.parametrize("name", STORED)
def test_all_are_the_same_model(name, real_config):
    card = read_card(CARD_PACKAGE, name)
    assert FlashNextPack().configure(card.description) == evolve(real_config, split_ngram_parts=1)
    thinking, instruct = card.sampling["thinking"], card.sampling["instruct"]
    assert (thinking.temperature, thinking.top_p, thinking.top_k) == (1.0, 0.95, 20)
    assert (instruct.temperature, instruct.presence_penalty) == (0.7, 1.5)
    assert [*card.sampling] == ["thinking", "instruct"]
