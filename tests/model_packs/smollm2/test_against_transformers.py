"""Random Llama checkpoints, through converter and pack, against transformers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ninfer_core.api import StorageChoice
from ninfer_core.artifact.container import open_artifact

SIZES = {
    "tied": {
        "vocab_size": 131, "hidden_size": 54, "intermediate_size": 77, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
        "tie_word_embeddings": True, "rope_theta": 5e4,
    },
    "untied": {
        "vocab_size": 97, "hidden_size": 35, "intermediate_size": 65, "num_hidden_layers": 2,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6,
        "tie_word_embeddings": False,
    },
    "one group": {
        "vocab_size": 100, "hidden_size": 32, "intermediate_size": 50, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": False,
    },
}
TOKENS = torch.randint(97, (140,), generator=torch.Generator().manual_seed(1)).tolist()


def random_llama(name):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES[name], max_position_embeddings=512, rms_norm_eps=1e-6)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough for attention and gates to matter
            parameter.normal_(mean=float(parameter.ndim == 1), std=0.3)
    return model


@torch.inference_mode()
def expected_logits(model):
    return model(torch.tensor([TOKENS])).logits[0]


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SIZES)
def test_logits_of_huggingface_checkpoints(name, dtype, tmp_path, convert_to, read):
    random_llama(name).to(dtype).save_pretrained(tmp_path / "hf")
    reader = read(convert_to(tmp_path / "hf"))
    model = LlamaForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    assert relative_error(reader.logits(TOKENS), expected_logits(model)) < 1e-5


def test_sharded_checkpoints_give_the_same(tmp_path, convert_to, read):
    model = random_llama("untied")
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    reader = read(convert_to(tmp_path / "hf"))
    assert relative_error(reader.logits(TOKENS), expected_logits(model)) < 1e-5


def test_a_recipe_quantises(tmp_path, convert_to, read):
    model = random_llama("untied")
    model.save_pretrained(tmp_path / "hf")
    path = convert_to(tmp_path / "hf", [StorageChoice("*", "q8_g32_fp16")])
    objects = open_artifact(path).objects.values()
    assert {each.format for each in objects if each.kind == "tensor"} == {"q8_g32_fp16", "fp32"}
    assert 1e-5 < relative_error(read(path).logits(TOKENS), expected_logits(model)) < 0.1


@pytest.mark.parametrize("name", SIZES)
def test_a_gguf_file_is_the_huggingface_checkpoint(name, tmp_path, convert_to, read):
    """Rows of rotated heads come back from GGUF's order; a tied head is one that is absent."""
    model = random_llama(name)
    write_llama_gguf(model, tmp_path / "model.gguf")
    reader = read(convert_to(tmp_path / "model.gguf"))
    assert relative_error(reader.logits(TOKENS), expected_logits(model)) < 1e-5


def write_llama_gguf(model, path):
    """As llama.cpp's converter does it: heads of q and k interleaved."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, config.head_dim)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(values, head_dim):
    halves = values.reshape(-1, 2, head_dim // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
