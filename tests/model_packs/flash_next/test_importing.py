"""Which tensor of a checkpoint becomes what, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ninfer_convert.conversion import convert
from ninfer_convert.source import open_source
from ninfer_core.api import ArtifactError
from ninfer_pack_flash_next.pack import FlashNextPack

PACK = FlashNextPack()
TABLE = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_"
HASHES = "model.layers.1.ple.ple_embedding."


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    return tiny_checkpoint(tmp_path / "hf", "flash_next")


def changed(checkpoint, change):
    """Rewrite the tensors of a checkpoint, which ``change`` has by name."""
    file = checkpoint.path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def plan_of(checkpoint):
    plan = PACK.import_source(open_source(checkpoint.path))
    return plan, {each.spec.name: each for each in plan.parameters}


def test_a_table_is_its_shards_in_the_order_of_numbers(checkpoint):
    """shard_10 comes after shard_9."""
    _, parameters = plan_of(checkpoint)
    table = parameters["text/layers/1/ngram/table"]
    assert table.sources == tuple(f"{TABLE}{i}.weight" for i in range(12))
    embedding = checkpoint.model.model.layers[1].ple.ple_embedding.ngram_embedding
    assert torch.equal(table.values(), embedding.weight.data)
    assert torch.equal(table.parts()["codes"], embedding.weight.data)


def test_a_range_of_a_table_is_of_the_shards_it_lies_in(checkpoint):
    _, parameters = plan_of(checkpoint)
    table = parameters["text/layers/1/ngram/table"]
    values, (count, width) = table.values(), table.spec.shape
    for begin, end in ((0, count), (0, 1), (count - 1, count), (5, count // 2)):
        some = table.rows(begin, end)
        assert some.spec.shape == (end - begin, width)
        assert torch.equal(some.values(), values[begin:end])
        assert torch.equal(some.parts()["codes"], values[begin:end])
    assert table.rows(0, 1).sources == (f"{TABLE}0.weight",)


def test_the_checkpoint_knows_how_many_shards_there_are(checkpoint):
    file = checkpoint.path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "split_ngram_parts": 512}))
    assert len(plan_of(checkpoint)[1]["text/layers/1/ngram/table"].sources) == 12


def test_a_missing_shard_is_noticed(checkpoint):
    changed(checkpoint, lambda tensors: tensors.pop(f"{TABLE}11.weight"))
    with pytest.raises(ArtifactError, match="text/layers/1/ngram/table"):
        plan_of(checkpoint)


def test_constants_are_computed_and_must_agree(checkpoint):
    plan, _ = plan_of(checkpoint)
    assert {name.removeprefix(HASHES) for name in plan.ignored} == {
        "layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}

    def rounded(tensors):
        name = f"{HASHES}layer_multipliers"
        tensors[name] = tensors[name].float().long()

    changed(checkpoint, rounded)
    with pytest.raises(ArtifactError, match=r"hashed in another way.*layer_multipliers"):
        plan_of(checkpoint)


def test_a_checkpoint_without_the_predictor(tiny_checkpoint, tmp_path):
    plan, parameters = plan_of(tiny_checkpoint(tmp_path / "hf", "flash_next", mtp=False))
    assert plan.components.keys() == {"text"}
    assert not [name for name in parameters if name.startswith("mtp/")]


def test_everything_is_used_or_ignored(checkpoint, plugins, tmp_path):
    report = convert(
        checkpoint.path, tmp_path / "model.ninfer", pack=PACK, registry=plugins.registry)
    assert {name.removeprefix(HASHES) for name in report.ignored} == {
        "layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}
