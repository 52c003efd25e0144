"""Official artifacts of models with experts, known without their weights."""

from functools import partial

from ninfer_checkpoints.cards import outline
from ninfer_pack_qwen_moe.pack import QwenMoePack

qwen3_6_35b_a3b = partial(outline, QwenMoePack(), __package__, "qwen3.6-35b-a3b")
