"""Published checkpoints of GLM-5.3-Flash, as they would be stored, known without their weights."""

from functools import partial

from ninfer_checkpoints.cards import outline
from ninfer_pack_glm.pack import GlmPack
from ninfer_pack_glm.plugin import CARDS

(
    glm_5_3_flash,
    glm_5_3_flash_bf16,
    glm_5_3_flash_nvfp4,
    glm_5_3_flash_nvfp4_redhat,
    glm_5_3_flash_nvfp4_lil,
    glm_5_3_flash_nvfp4_spark,
    glm_5_3_flash_compact,
) = (partial(outline, GlmPack(), __package__, name) for name in CARDS)
