"""What this distribution registers: a pack, its recipes and published checkpoints."""

from __future__ import annotations

from ninfer_core import api
from ninfer_core.api import hookimpl

NINFER_API = (1, 0)
CARDS = {
    "qwen3.8-flash-next-bf16": "qwen3_8_flash_next_bf16",
    "qwen3.8-flash-next-fp8": "qwen3_8_flash_next_fp8",
    "qwen3.8-flash-next-nvfp4": "qwen3_8_flash_next_nvfp4",
    "qwen3.8-flash-next-nvfp4-radixark": "qwen3_8_flash_next_nvfp4_radixark",
    "qwen3.8-flash-next-nvfp4-inferact": "qwen3_8_flash_next_nvfp4_inferact",
    "qwen3.8-flash-next-nvfp4-mxfp8": "qwen3_8_flash_next_nvfp4_mxfp8",
    "qwen3.8-flash-next-compact": "qwen3_8_flash_next_compact",
}
"""Names of published checkpoints, and their outlines in `cards`."""

PACK = api.ModelPackSpec(
    name="flash_next",
    pack="ninfer_pack_flash_next.pack:FlashNextPack",
    claim="ninfer_pack_flash_next.config:claim",
    cards=tuple(
        api.ModelCard(name, f"ninfer_pack_flash_next.cards:{outline}")
        for name, outline in CARDS.items()
    ),
    recipes="ninfer_pack_flash_next.recipes",
)


@hookimpl
def ninfer_model_packs() -> list[api.ModelPackSpec]:
    return [PACK]
