"""What this distribution registers: a pack, its recipes and its published models."""

from __future__ import annotations

from ninfer_core import api
from ninfer_core.api import hookimpl

NINFER_API = (1, 0)
CARDS = {
    "qwen3.6-35b-a3b": "qwen3_6_35b_a3b",
}
"""Names of published models, and their outlines in `cards`."""

PACK = api.ModelPackSpec(
    name="qwen_moe",
    pack="ninfer_pack_qwen_moe.pack:QwenMoePack",
    claim="ninfer_pack_qwen_moe.config:claim",
    cards=tuple(
        api.ModelCard(name, f"ninfer_pack_qwen_moe.cards:{outline}")
        for name, outline in CARDS.items()
    ),
    recipes="ninfer_pack_qwen_moe.recipes",
)


@hookimpl
def ninfer_model_packs() -> list[api.ModelPackSpec]:
    return [PACK]
