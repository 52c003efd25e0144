"""Published artifacts: their recipes store every part as the official tables say."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from ninfer_checkpoints.cards import read_card
from ninfer_core.api import UnsupportedError
from ninfer_pack_qwen_dense.plugin import PACK as DENSE
from ninfer_pack_qwen_moe.plugin import PACK as MOE

CARDS = {card.name: card for pack in (DENSE, MOE) for card in pack.cards}
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
FP8, NVFP4 = "fp8_e4m3fn_row_bf16", "nvfp4"
L = "text/layers/"
GROUPWISE = {
    f"{L}3/attention/query": Q4, f"{L}63/attention/key": Q4, f"{L}3/attention/gate": Q5,
    f"{L}3/attention/value": Q5, f"{L}3/attention/output": Q5, f"{L}0/gdn/query": Q4,
    f"{L}0/gdn/key": Q4, f"{L}0/gdn/value": Q5, f"{L}0/gdn/z": Q5, f"{L}62/gdn/output": Q5,
    f"{L}0/mlp/gate": Q4, f"{L}63/mlp/up": Q4, f"{L}0/mlp/down": Q5,
}
STORED = {
    "qwen3.6-27b": GROUPWISE | {"text/token_embedding": Q6, "text/output_head": Q6},
    "qwen3.8-27b": GROUPWISE | {"text/token_embedding": Q8, "text/output_head": Q8},
    "qwen3.6-27b-nvfp4": {
        "text/token_embedding": Q8, "text/output_head": Q8, f"{L}3/attention/query": "bf16",
        f"{L}11/attention/key": "bf16", f"{L}19/attention/gate": "bf16",
        f"{L}23/attention/value": "bf16", f"{L}27/attention/query": NVFP4,
        f"{L}31/attention/value": NVFP4, f"{L}3/attention/output": "bf16",
        f"{L}7/attention/output": "bf16", f"{L}11/attention/output": NVFP4,
        f"{L}23/attention/output": NVFP4, f"{L}4/gdn/output": "bf16", f"{L}5/gdn/output": NVFP4,
        f"{L}4/gdn/query": NVFP4, f"{L}44/gdn/output": NVFP4, f"{L}0/mlp/gate": NVFP4,
        f"{L}63/mlp/down": NVFP4,
    },
    "qwen3.8-27b-nvfp4": {
        "text/token_embedding": FP8, "text/output_head": FP8, f"{L}0/mlp/gate": NVFP4,
        f"{L}9/mlp/up": NVFP4, f"{L}10/mlp/down": NVFP4, f"{L}55/mlp/down": NVFP4,
        f"{L}56/mlp/down": FP8, f"{L}63/mlp/gate": FP8, f"{L}3/attention/query": FP8,
        f"{L}0/gdn/z": FP8, f"{L}55/attention/output": FP8,
    },
    "qwen3.6-35b-a3b": {
        "text/token_embedding": Q8, "text/output_head": Q6, f"{L}3/attention/query": Q8,
        f"{L}0/gdn/output": Q8, f"{L}0/moe/experts/17/gate": Q4, f"{L}39/moe/experts/255/up": Q4,
        f"{L}33/moe/experts/0/down": Q5, f"{L}34/moe/experts/0/down": Q6,
        f"{L}38/moe/experts/9/down": Q6, f"{L}39/moe/experts/200/down": Q6,
        f"{L}37/moe/experts/0/down": Q5, f"{L}4/moe/experts/0/down": Q5,
        f"{L}0/moe/shared/gate": Q8, f"{L}0/moe/router": "bf16", f"{L}39/moe/shared_score": "bf16",
        "mtp/layers/0/moe/experts/3/gate": Q8, "mtp/layers/0/moe/experts/3/down": Q8,
        "mtp/layers/0/moe/router": "bf16",
    },
}
EVERYWHERE = {
    f"{L}0/gdn/a_projection": "bf16", f"{L}0/gdn/b_projection": "bf16", "proposal/head": Q4,
    "mtp/input_projection": Q8, "mtp/layers/0/attention/query": Q8,
    "mtp/layers/0/attention/output": Q8,
}


@pytest.fixture(scope="module")
def plans():
    return {name: card.outline.load()() for name, card in CARDS.items()}


def test_all_five_are_there():
    assert CARDS.keys() == STORED.keys()


@pytest.mark.parametrize("name", CARDS)
def test_every_part_is_stored_as_the_tables_say(plans, name):
    plan = plans[name]
    recipe = [(choice.pattern, choice.format) for choice in plan.recipe]
    projections = [p.spec.name for p in plan.parameters if p.spec.kind != "direct"]
    found = {n: next(format for pattern, format in recipe if fnmatchcase(n, pattern))
             for n in projections}
    wanted = STORED[name] | EVERYWHERE
    assert {each: found[each] for each in wanted} == wanted


@pytest.mark.parametrize("name", CARDS)
def test_outlines_have_all_but_values(plans, name):
    plan = plans[name]
    assert plan.components["text"]["proposal"] == {"domain": "indexed", "rows": 131072}
    assert plan.components["mtp"]["target"] == "text"
    held = {each.spec.name: each.format for each in plan.parameters if each.spec.kind == "direct"}
    assert held["text/layers/0/gdn/a_log"] == held["text/layers/0/gdn/dt_bias"] == "fp32"
    assert held["text/final_norm"] == "bf16"
    assert held["proposal/token_ids"] == "int32"
    with pytest.raises(UnsupportedError, match="no weights"):
        plan.parameters[0].values()


@pytest.mark.parametrize("name", CARDS)
def test_recommended_sampling(name):
    package = CARDS[name].outline.path.partition(":")[0]
    sampling = read_card(package, name).sampling
    assert (sampling["thinking"].temperature, sampling["thinking"].top_p) == (1.0, 0.95)
    assert sampling["thinking"].presence_penalty == 0
    assert sampling["instruct"].presence_penalty == 1.5
    assert {each.top_k for each in sampling.values()} == {20}
