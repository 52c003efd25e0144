"""Published checkpoints of Flash-Next, as they would be stored, known without their weights."""

from functools import partial

from ninfer_checkpoints.cards import outline
from ninfer_pack_flash_next.pack import FlashNextPack
from ninfer_pack_flash_next.plugin import CARDS

(
    qwen3_8_flash_next_bf16,
    qwen3_8_flash_next_fp8,
    qwen3_8_flash_next_nvfp4,
    qwen3_8_flash_next_nvfp4_radixark,
    qwen3_8_flash_next_nvfp4_inferact,
    qwen3_8_flash_next_nvfp4_mxfp8,
    qwen3_8_flash_next_compact,
) = (partial(outline, FlashNextPack(), __package__, name) for name in CARDS)
