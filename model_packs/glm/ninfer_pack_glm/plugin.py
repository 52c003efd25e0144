"""What this distribution registers: a pack, its recipes and published checkpoints."""

from __future__ import annotations

from ninfer_core import api
from ninfer_core.api import hookimpl

NINFER_API = (1, 0)
CARDS = {
    "glm-5.3-flash": "glm_5_3_flash",
    "glm-5.3-flash-bf16": "glm_5_3_flash_bf16",
    "glm-5.3-flash-nvfp4": "glm_5_3_flash_nvfp4",
    "glm-5.3-flash-nvfp4-redhat": "glm_5_3_flash_nvfp4_redhat",
    "glm-5.3-flash-nvfp4-lil": "glm_5_3_flash_nvfp4_lil",
    "glm-5.3-flash-nvfp4-spark": "glm_5_3_flash_nvfp4_spark",
    "glm-5.3-flash-compact": "glm_5_3_flash_compact",
}
"""Names of published checkpoints, and their outlines in `cards`."""

PACK = api.ModelPackSpec(
    name="glm",
    pack="ninfer_pack_glm.pack:GlmPack",
    claim="ninfer_pack_glm.config:claim",
    cards=tuple(
        api.ModelCard(name, f"ninfer_pack_glm.cards:{outline}")
        for name, outline in CARDS.items()
    ),
    recipes="ninfer_pack_glm.recipes",
)


@hookimpl
def ninfer_model_packs() -> list[api.ModelPackSpec]:
    return [PACK]
