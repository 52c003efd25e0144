"""Random checkpoints of odd sizes, through converter and packs, against transformers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers

from ninfer_convert.conversion import convert

ONE_IN_THREE = ["linear_attention", "full_attention", "linear_attention"]
UNTIED = {"num_hidden_layers": 9}
TIED = {
    "tie_word_embeddings": True, "num_hidden_layers": 3, "layer_types": ONE_IN_THREE,
    "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
    "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 8,
    "linear_value_head_dim": 14, "linear_conv_kernel_dim": 3,
    "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20,
        "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
    },
}
CASES = {
    f"{kind}, {name}": (kind, sizes) for kind in ("dense", "moe")
    for name, sizes in (("untied", UNTIED), ("tied", TIED))
}
TOKENS = torch.randint(283, (140,), generator=torch.Generator().manual_seed(1)).tolist()
KERNELS = {"reference": False, "cpu": True}


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module")
def case(convert_tiny, read):
    """``(name, kernels) -> (checkpoint, reader)``, each made once."""

    @cache
    def converted(name):
        kind, sizes = CASES[name]
        return convert_tiny(kind, **sizes)

    @cache
    def made(name, kernels):
        checkpoint, path = converted(name)
        return checkpoint, read(CASES[name][0], path, profile=KERNELS[kernels])

    return made


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_logits(case, name, kernels):
    checkpoint, reader = case(name, kernels)
    assert relative_error(reader.logits(TOKENS), checkpoint.logits(TOKENS)) < 1e-5


@pytest.mark.parametrize("width", [1, 3, 63, 64, 65])
@pytest.mark.parametrize("name", CASES)
def test_logits_in_any_chunks(case, name, width):
    checkpoint, reader = case(name, "cpu")
    assert relative_error(reader.logits(TOKENS, width), checkpoint.logits(TOKENS)) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_two_hundred_steps_of_decoding(case, name):
    """Greedy tokens, and the logits they were chosen by."""
    checkpoint, reader = case(name, "cpu")
    tokens = reader.greedy(TOKENS[:20], 200)
    expected = checkpoint.logits(tokens[:-1])[19:]
    assert relative_error(reader.logits(tokens[:-1], 1)[19:], expected) < 1e-5
    best, second = expected.topk(2).values.unbind(1)
    assert (best - second).min() > 1e-4, "no choice is a near tie"
    assert tokens[20:] == expected.argmax(1).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_half_precision_checkpoints_keep_their_bits(convert_tiny, read, kind, dtype):
    checkpoint, path = convert_tiny(kind, dtype=dtype, **TIED)
    error = relative_error(read(kind, path).logits(TOKENS), checkpoint.logits(TOKENS))
    assert error < 1e-5


def test_names_with_a_segment_are_the_same_model(convert_tiny, read):
    def rename(name):
        return name.replace("model.", "model.language_model.", 1)

    checkpoint, path = convert_tiny("dense", rename=rename)
    assert relative_error(read("dense", path).logits(TOKENS), checkpoint.logits(TOKENS)) < 1e-5


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_checkpoint_with_a_vision_tower(plugins, tiny_checkpoint, read, tmp_path, kind):
    """Its text config is nested, its names have a segment, and the tower is left out."""
    text = tiny_checkpoint(tmp_path / "text", kind, mtp=False).model
    name = {"dense": "Qwen3_5", "moe": "Qwen3_5Moe"}[kind]
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2,
        "out_hidden_size": 40, "num_position_embeddings": 16,
    }
    config = getattr(transformers, f"{name}Config")(
        text_config=text.config.to_dict(), vision_config=vision)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.save_pretrained(tmp_path / "both")
    pack = plugins.registry.packs[f"qwen_{kind}"].spec.pack.load()()
    report = convert(
        tmp_path / "both", tmp_path / "model.ninfer", pack=pack, registry=plugins.registry)
    assert report.ignored
    assert all(each.startswith("model.visual.") for each in report.ignored)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    assert relative_error(read(kind, tmp_path / "model.ninfer").logits(TOKENS), expected) < 1e-5


def test_a_checkpoint_without_predictor(convert_tiny, read):
    checkpoint, path = convert_tiny("moe", mtp=False)
    reader = read("moe", path)
    assert reader.model.predictor is None
    assert relative_error(reader.logits(TOKENS), checkpoint.logits(TOKENS)) < 1e-5


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_every_tensor_matters(tiny_checkpoint, tmp_path, kind):
    """What these tests compare depends on each of them by much more than the tolerance."""
    checkpoint = tiny_checkpoint(tmp_path, kind, mtp=False)
    plain = checkpoint.logits(TOKENS)
    for name, values in checkpoint.model.named_parameters():
        kept = values.data.clone()
        values.data += 0.3 * kept.std() * torch.randn(kept.shape)
        assert relative_error(checkpoint.logits(TOKENS), plain) > 1e-3, name
        values.data = kept
