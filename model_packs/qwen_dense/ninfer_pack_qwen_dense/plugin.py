"""What this distribution registers: a pack, its recipes and its published models."""

from __future__ import annotations

from ninfer_core import api
from ninfer_core.api import hookimpl

NINFER_API = (1, 0)
CARDS = {
    "qwen3.6-27b": "qwen3_6_27b",
    "qwen3.8-27b": "qwen3_8_27b",
    "qwen3.6-27b-nvfp4": "qwen3_6_27b_nvfp4",
    "qwen3.8-27b-nvfp4": "qwen3_8_27b_nvfp4",
}
"""Names of published models, and their outlines in `cards`."""

PACK = api.ModelPackSpec(
    name="qwen_dense",
    pack="ninfer_pack_qwen_dense.pack:QwenDensePack",
    claim="ninfer_pack_qwen_dense.config:claim",
    cards=tuple(
        api.ModelCard(name, f"ninfer_pack_qwen_dense.cards:{outline}")
        for name, outline in CARDS.items()
    ),
    recipes="ninfer_pack_qwen_dense.recipes",
)


@hookimpl
def ninfer_model_packs() -> list[api.ModelPackSpec]:
    return [PACK]
