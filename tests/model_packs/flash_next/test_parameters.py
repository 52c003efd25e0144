"""Names, shapes and number of the parameters are those of the real model."""

from __future__ import annotations

from math import prod

import pytest

from ninfer_core.state.codecs import Bf16Codec
from ninfer_pack_flash_next.pack import FlashNextPack

VISION = 448_931_056
PACK = FlashNextPack()
A = "text/layers/3/"
ONE_OF_EACH = {
    "text/token_embedding": (248_320, 2560), "text/output_head": (248_320, 2560),
    f"{A}mixer_streams/norm": (10_240,), f"{A}mixer_streams/down": (320, 10_240),
    f"{A}mixer_streams/inject": (4, 10_240), f"{A}mixer_streams/up": (10_240, 320),
    f"{A}ffn_streams/inject": (4, 10_240), "text/final_streams/up": (10_240, 320),
    f"{A}attention/query": (6144, 2560), f"{A}attention/gate": (6144, 2560),
    f"{A}attention/index/query": (512, 2560), f"{A}attention/index/key": (128, 2560),
    f"{A}attention/index/query_norm": (128,), f"{A}attention/key_norm": (256,),
    f"{A}moe/router": (512, 2560), f"{A}moe/experts/511/gate": (640, 2560),
    f"{A}moe/experts/0/down": (2560, 640), f"{A}moe/shared_score": (1, 2560),
    "text/layers/1/ngram/table": (320_001_536, 160), "text/layers/1/ngram/key": (10_240, 2560),
    "text/layers/1/ngram/value": (2560, 2560), "text/layers/1/ngram/convolution": (4, 10_240),
    "text/layers/2/gdn/convolution": (4, 10_240), "text/layers/2/gdn/z": (6144, 2560),
    "mtp/hidden_norm": (10_240,), "mtp/embedding_norm": (2560,),
    "mtp/hidden_projection": (2560, 2560), "mtp/layers/0/attention/index/key": (128, 2560),
    "mtp/layers/0/moe/experts/511/up": (640, 2560), "mtp/final_streams/down": (320, 10_240),
}


@pytest.fixture(scope="module")
def parameters(real_config):
    return {each.spec.name: each for each in PACK.checkpoint_parameters(real_config)}


def test_shapes(parameters):
    found = {name: parameters[name].spec.shape for name in ONE_OF_EACH}
    assert found == ONE_OF_EACH
    assert "text/final_streams/inject" not in parameters
    assert not [name for name in parameters if "final_norm" in name or "input_norm" in name]


def test_the_published_number_of_parameters(parameters):
    assert sum(prod(each.spec.shape) for each in parameters.values()) + VISION == 179_999_981_424


def test_the_published_tensors(parameters):
    """1,658 with the vision tower's 333 and the three constants of the hash; 31 of the MTP."""
    origins = [each.origins if each.joined is not None else each.origins[:1]
               for each in parameters.values()]
    tensors = {origin.tensor for each in origins for origin in each}
    assert len(tensors) + 333 + 3 == 1658
    assert sum(name.startswith("mtp.") for name in tensors) == 31
    shards = [o.tensor for o in parameters["text/layers/1/ngram/table"].origins]
    begin = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_"
    assert shards == [f"{begin}{i}.weight" for i in range(128)]


def test_members_of_one_object_follow_each_other(parameters):
    parents = [each.parent for each in parameters.values() if each.parent]
    changes = [parent for i, parent in enumerate(parents) if parents[i - 1] != parent]
    assert len(changes) == len(set(parents))
    of_one_layer = {parent.removeprefix(A) for parent in parents if parent.startswith(A)}
    assert of_one_layer == {
        "mixer_streams/down_inject", "ffn_streams/down_inject", "attention/query_key_gate_value",
        "attention/index/query_key", "moe/scores", "moe/experts/gate_up", "moe/experts/down",
        "moe/shared/gate_up",
    }


def test_only_the_table_of_n_grams_stays_on_the_host(real_config):
    specs = PACK.parameters(real_config)
    assert [each.name for each in specs if each.on_host] == ["text/layers/1/ngram/table"]


def test_bytes_of_state(real_config):
    """A token: keys and values of 12 layers and the predictor in bf16, and index keys in fp32, one
    for four tokens. A sequence: see the sizes of the recurrence and of what came last."""
    states = {each.name: each for each in PACK.states(real_config)}
    codec, per_token = Bf16Codec(), 0
    for state in (each for each in states.values() if hasattr(each, "planes")):
        for plane in state.planes:
            [(_, _, shape)] = codec.planes(plane.shape)
            size = (2 if state.dtype is None else 4) * prod(shape) // plane.tokens_per_entry
            per_token += state.layers * size
    assert per_token == 13 * (2 * 2 * 256 * 2 + 128 * 4 // 4)
    assert states["gdn_state"].layers * prod(states["gdn_state"].shape) * 4 == 113_246_208
    assert states["ngram_convolution"].shape == (9, 10_240)
    assert states["ngram_tokens"].shape == (2,) and states["ngram_tokens"].dtype == "int64"
