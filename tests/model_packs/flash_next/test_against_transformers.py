"""Random checkpoints through converter and pack, against transformers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers

from ninfer_convert.conversion import convert
from ninfer_ops.index_select import reference as index_select

KERNELS = {"reference": False, "cpu": True}
SMALL_BUDGET = {"num_hidden_layers": 5}  # of 8 tokens in blocks of 4
OTHER_SIZES = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "hc_count": 2, "hc_lowrank": 6, "ple_layer_ids": [1, 3],
    "ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 36, "ple_conv_kernel_size": 3,
    "make_ngram_vocab_size_divisible_by": 12, "indexer_n_heads": 12, "indexer_head_dim": 8,
    "indexer_budget": 48, "indexer_compress_ratio": 8, "eos_token_id": [5, 7],
    "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 1],
    },
}
# Scores that are 0 for every head are ties, which transformers decides by chance; many heads have
# none.
CASES = {"small budget": SMALL_BUDGET, "other sizes": OTHER_SIZES}


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def tokens_of(count, eos):
    """Random ones, with several ends of text among them, also one after the other."""
    tokens = torch.randint(283, (count,), generator=torch.Generator().manual_seed(count))
    for at in (0, 1, 9, 20, 22, 71, count - 1):
        if at < count:
            tokens[at] = eos
    return tokens.tolist()


@pytest.fixture(scope="module")
def case(convert_tiny, read):
    """``(name, kernels) -> (checkpoint, reader, eos)``, each made once."""

    @cache
    def converted(name):
        return convert_tiny(**CASES[name])

    @cache
    def made(name, kernels):
        checkpoint, path = converted(name)
        eos = checkpoint.model.config.eos_token_id
        return checkpoint, read(path, profile=KERNELS[kernels]), eos if type(eos) is int else eos[0]

    return made


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 47, 48, 49, 140])
@pytest.mark.parametrize("name", CASES)
def test_logits(case, name, count, kernels):
    """Below, at and above the budget, at every remainder of a block."""
    checkpoint, reader, eos = case(name, kernels)
    tokens = tokens_of(count, eos)
    assert relative_error(reader.logits(tokens), checkpoint.logits(tokens)) < 1e-5


@pytest.mark.parametrize("width", [1, 3, 4, 63, 64, 65])
@pytest.mark.parametrize("name", CASES)
def test_logits_in_any_chunks(case, name, width):
    checkpoint, reader, eos = case(name, "cpu")
    tokens = tokens_of(140, eos)
    assert relative_error(reader.logits(tokens, width), checkpoint.logits(tokens)) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_two_hundred_steps_of_decoding(case, name):
    """Greedy tokens, and the logits they were chosen by."""
    checkpoint, reader, eos = case(name, "cpu")
    tokens = reader.greedy(tokens_of(20, eos), 200)
    expected = checkpoint.logits(tokens[:-1])[19:]
    assert relative_error(reader.logits(tokens[:-1], 1)[19:], expected) < 1e-5
    best, second = expected.topk(2).values.unbind(1)
    assert (best - second).min() > 1e-5, "no choice is a near tie"
    assert tokens[20:] == expected.argmax(1).tolist()


def blocks_of(mask, block):
    """Blocks that are chosen whole, of each query: bool ``[T, T]`` to sorted lists."""
    count = len(mask)
    whole = mask[:, : count // block * block].unflatten(1, (-1, block)).all(2)
    closed = (torch.arange(whole.shape[1]) + 1) * block <= torch.arange(1, count + 1)[:, None]
    return [row.nonzero().flatten().tolist() for row in whole & closed]


@pytest.mark.parametrize("name", CASES)
def test_the_same_blocks_are_chosen(convert_tiny, read, monkeypatch, name):
    checkpoint, path = convert_tiny(**CASES[name])
    config, chosen, bind = checkpoint.model.config, [], index_select.bind

    def watched(request, planes):
        select = bind(request, planes)
        def call(*arguments):
            chosen.append([[b for b in row if b >= 0] for row in select(*arguments).tolist()])
            return arguments[-1]
        return call

    monkeypatch.setattr(index_select, "bind", watched)
    masks = []
    for layer in checkpoint.model.model.layers:
        if layer.layer_type == "indexed_attention":
            layer.self_attn.indexer.register_forward_hook(lambda *call: masks.append(call[2][0, 0]))
    eos = config.eos_token_id if type(config.eos_token_id) is int else config.eos_token_id[0]
    tokens = tokens_of(140, eos)
    read(path).logits(tokens)
    checkpoint.logits(tokens)
    expected = [blocks_of(mask, config.indexer_compress_ratio) for mask in masks]
    assert chosen == expected
    assert len(expected) == config.layer_types.count("indexed_attention")
    budget = config.indexer_budget // config.indexer_compress_ratio
    assert {len(row) for row in expected[0]} == set(range(budget + 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_keep_their_bits(convert_tiny, read, dtype):
    checkpoint, path = convert_tiny(dtype=dtype, **SMALL_BUDGET)
    tokens = tokens_of(140, 3)
    assert relative_error(read(path).logits(tokens), checkpoint.logits(tokens)) < 1e-5


def test_a_checkpoint_with_a_vision_tower(plugins, tiny_checkpoint, read, tmp_path):
    """Its text config is nested, its names have a segment, and the tower is left out."""
    text = tiny_checkpoint(tmp_path / "text", "flash_next", mtp=False).model
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2,
        "out_hidden_size": 40, "num_position_embeddings": 16,
    }
    config = transformers.Qwen4ExpConfig(
        text_config=text.config.to_dict(), vision_config=vision)
    model = transformers.Qwen4ExpForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.save_pretrained(tmp_path / "both")
    pack = plugins.registry.packs["flash_next"].spec.pack.load()()
    report = convert(
        tmp_path / "both", tmp_path / "model.ninfer", pack=pack, registry=plugins.registry)
    left_out = [name for name in report.ignored if "ple_embedding" not in name]
    assert left_out and all(name.startswith("model.visual.") for name in left_out)
    tokens = tokens_of(30, 3)
    with torch.inference_mode():
        expected = text(torch.tensor([tokens])).logits[0]
    assert relative_error(read(tmp_path / "model.ninfer").logits(tokens), expected) < 1e-5
