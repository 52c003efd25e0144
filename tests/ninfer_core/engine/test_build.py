"""The build context gives a pack what it asks for, and binds ops by all that is known of them."""

from types import SimpleNamespace

import pytest
import torch

from ninfer_core.api import (
    FormatSpec,
    KVCodecSpec,
    PagedStateSpec,
    PluginError,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.weight import Weight
from ninfer_core.engine.build import build_model
from ninfer_core.state.store import StateStore
from ninfer_fixtures.contracts import CONTRACTS

BF16 = FormatSpec("bf16", "ninfer_core.artifact.formats.direct:Bf16", 16)


class Binder:
    """Keeps what it is asked for."""

    contracts, device, capability = CONTRACTS, "cpu", 0

    def bind(self, request, **constants):
        return request, constants


class Weights:
    def weight(self, *names):
        info = WeightInfo((8 * len(names), 4), BF16, "contiguous_le_v1")
        return Weight(info, {}, None, None)

    def weight_runs(self, *names):
        return (self.weight(*names),)

    def tensor(self, name):
        return torch.arange(4.0)


@pytest.fixture
def context():
    """The context that a pack gets."""
    store = StateStore(
        [PagedStateSpec("kv", 2, (StatePlane("key", (2, 8)),))],
        KVCodecSpec("int8", "ninfer_core.state.codecs:Int8Codec"),
        num_pages=2, max_sequences=1, max_context=128, max_verify_rows=1,
    )
    pack = SimpleNamespace(build=lambda config, context: context)
    profile = SimpleNamespace(device="cpu", compute_dtype="bfloat16")
    return build_model(
        pack, None, weights=Weights(), binder=Binder(), store=store, profile=profile,
        max_tokens=64, max_logits=8, max_context=128,
    )


def test_sizes_and_types_are_the_plans(context):
    assert (context.max_tokens, context.max_logits, context.max_context) == (64, 8, 128)
    assert context.compute_dtype == torch.bfloat16
    assert context.tensor("norm").dtype == torch.bfloat16


def test_a_request_says_all_that_is_known_of_an_op(context):
    weight = context.weight("gate", "up")
    request, constants = context.bind("linear", weight=weight, bias=None)
    assert (request.op, request.device, request.dtype) == ("linear", "cpu", "bfloat16")
    assert request.weights == (WeightInfo((16, 4), BF16, "contiguous_le_v1"),)
    assert (request.max_tokens, request.kv_codec) == (64, "")
    assert constants == {"weight": weight, "bias": None}


def test_a_request_has_the_weights_of_a_tuple(context):
    weights = context.weight("a", "b"), context.weight("c")
    request, constants = context.bind("linear_group", weights=weights, biases=(None, None))
    assert [info.shape for info in request.weights] == [(16, 4), (8, 4)]
    assert constants == {"weights": weights, "biases": (None, None)}


def test_a_request_names_the_codec_of_the_state(context):
    planes = context.state("kv", 1)
    request, _ = context.bind("paged_attention", sizes={"head_dim": 8}, planes=planes)
    assert (request.kv_codec, request.sizes) == ("int8", {"head_dim": 8})


def test_an_op_of_a_third_party_is_bound_too(context):
    request, _ = context.bind("my_op", b=context.weight("b", "c"), a=context.weight("a"), n=3)
    assert [info.shape for info in request.weights] == [(8, 4), (16, 4)]


def test_buffers_of_one_name_share_memory(context):
    first, second = context.buffer("x", 16), context.buffer("x", 16)
    assert first(3).shape == (3, 16)
    assert first(3) is first(3), "a view is made once"
    assert first(64).data_ptr() == second(1).data_ptr()
    assert context.buffer("y", 16)(1).data_ptr() != first(1).data_ptr()


def test_a_buffer_has_one_width(context):
    context.buffer("x", 16)
    with pytest.raises(PluginError, match=r"bfloat16 x 16 and .*bfloat16 x 32"):
        context.buffer("x", 32)
