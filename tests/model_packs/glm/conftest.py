"""Tiny random checkpoints of GLM-5.3, converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from ninfer_convert.conversion import convert
from ninfer_fixtures.checkpoint import TinyCheckpoint
from ninfer_fixtures.tiny import tiny_resources
from ninfer_pack_glm.pack import GlmPack

TEXT = {
    "vocab_size": 283, "hidden_size": 40, "intermediate_size": 56, "moe_intermediate_size": 20,
    "num_hidden_layers": 5, "num_attention_heads": 3, "num_key_value_heads": 3,
    "n_shared_experts": 1, "n_routed_experts": 7, "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 24, "q_lora_rank": 28, "v_head_dim": 12,
    "qk_nope_head_dim": 10, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention",
                    "indexed_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"],
    "index_topk": 32, "index_head_dim": 16, "index_n_heads": 18, "index_kpool": 4,
    "swiglu_limit": 1.5, "linear_head_dim": 14, "linear_num_heads": 3,
    "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0, "hc_mult": 4, "hc_sinkhorn_iters": 4,
    "pad_token_id": 0,
}
VISION = {
    "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "image_size": 28,
    "out_hidden_size": 40, "projection_intermediate_size": 24,
}


@pytest.fixture(scope="session")
def tiny_glm() -> Callable[..., TinyCheckpoint]:
    """``(path, *, mtp=True, dtype=fp32, rename=str, change=None, **sizes)``: write a random
    checkpoint.

    :param mtp: with a next-token predictor. :param dtype: of the stored numbers.
    :param rename: ``(name) -> name``, of tensors as stored.
    :param change: ``(name, values)``, called with every tensor, those of the predictor under the
        names that they have in their layer. :param sizes: for the text config.
    """

    def make(
        path: Path, *, mtp: bool = True, dtype: torch.dtype = torch.float32,
        rename: Callable[[str], str] = str, change: Callable[[str, Tensor], None] | None = None,
        **sizes,
    ) -> TinyCheckpoint:
        config = transformers.Glm5NextConfig(text_config={**TEXT, **sizes}, vision_config=VISION)
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        model = transformers.Glm5NextForConditionalGeneration(config).eval()
        extra = _predictor(model) if mtp else {}
        for name, values in [*model.named_parameters(), *model.named_buffers(), *extra.items()]:
            if values.is_floating_point() and "rotary" not in name:
                _randomise(name, values.data, dtype)
                if change:
                    change(name, values.data)
        model.save_pretrained(path)
        file = path / "model.safetensors"
        prefix = f"model.language_model.layers.{config.text_config.num_hidden_layers}."
        stored = load_file(file) | {prefix + name: each for name, each in extra.items()}
        stored = {rename(name): each.to(dtype) for name, each in stored.items()}
        save_file(stored, file, {"format": "pt"})
        for role, content in tiny_resources().items():
            (path / role).write_bytes(content)
        return TinyCheckpoint(path, model, extra)

    return make


def _predictor(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Names as in checkpoints, and shapes: a layer of sparse attention and experts, without
    hyper-connections, and what is around it."""
    config = model.config.text_config
    index = config.layer_types.index("indexed_attention")
    width, layer = config.hidden_size, model.model.language_model.layers[index]
    made = {
        "eh_proj.weight": torch.empty(width, 2 * width),
        **{f"{norm}.weight": torch.empty(width) for norm in ("enorm", "hnorm", "shared_head.norm")},
    }
    for name, values in layer.state_dict().items():
        if "_hc." in name:
            continue
        if name.startswith("mlp.experts."):
            made |= _experts(name, values)
        else:
            made[name] = torch.empty_like(values)
    return made


def _experts(name: str, bank: Tensor) -> dict[str, Tensor]:
    """The matrices of a bank, each by itself."""
    parts = ("gate", "up") if "gate_up" in name else ("down",)
    return {
        f"mlp.experts.{expert}.{part}_proj.weight": torch.empty_like(values)
        for expert, matrix in enumerate(bank)
        for part, values in zip(parts, matrix.chunk(len(parts)), strict=True)
    }


def _randomise(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Numbers of ``dtype``, large enough for every part to matter."""
    if name.endswith("A_log"):
        values.uniform_(0.3, 2).log_()
    elif "embed_tokens" in name or name.endswith((".base", "compress_ape")):
        values.normal_()
    elif name.endswith((".scale", "dt_bias")):
        values.normal_(std=0.5)
    elif name.endswith(("bias", "correction_bias")):
        values.normal_(std=0.2)
    elif values.ndim == 1:
        values.normal_(mean=1.0, std=0.3)
    else:
        values.normal_(std=0.7 * values.shape[-1] ** -0.5)
    values.copy_(values.to(dtype))


@pytest.fixture(scope="session")
def convert_glm(plugins, tiny_glm, tmp_path_factory):
    """``(recipe=None, **options) -> (checkpoint, artifact)`` of a random checkpoint."""

    def run(recipe=None, **options):
        folder = tmp_path_factory.mktemp("glm")
        checkpoint = tiny_glm(folder / "hf", **options)
        path = folder / "model.ninfer"
        convert(checkpoint.path, path, pack=GlmPack(), registry=plugins.registry, recipe=recipe)
        return checkpoint, path

    return run


@pytest.fixture(scope="session")
def read_glm(build_reader):
    """``(path, profile=False)`` to a reader of the model in an artifact."""
    return lambda path, **options: build_reader(GlmPack(), path, **options)
