"""Official artifacts of dense models, known without their weights."""

from functools import partial

from ninfer_checkpoints.cards import outline
from ninfer_pack_qwen_dense.pack import QwenDensePack

qwen3_6_27b, qwen3_8_27b, qwen3_6_27b_nvfp4, qwen3_8_27b_nvfp4 = (
    partial(outline, QwenDensePack(), __package__, name)
    for name in ("qwen3.6-27b", "qwen3.8-27b", "qwen3.6-27b-nvfp4", "qwen3.8-27b-nvfp4")
)
