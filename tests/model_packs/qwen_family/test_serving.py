"""Engines on converted models: drafts of the predictor change no greedy answer."""

from __future__ import annotations

import pytest

from ninfer_conformance.lab import lab
from ninfer_conformance.subject import find_subject
from ninfer_convert.conversion import convert_checkpoint
from ninfer_convert.draft_head import DraftHead
from ninfer_convert.source import open_source
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.resolve import resolve
from ninfer_core.engine.build import Build
from ninfer_fixtures.served import serve
from ninfer_pack_qwen_dense.pack import QwenDensePack
from ninfer_pack_qwen_moe.pack import QwenMoePack

PACKS = {"dense": QwenDensePack(), "moe": QwenMoePack()}
HEADS = {"own": None, "shortlist": DraftHead(90), "full": DraftHead()}
DRAFTS = {"own": (1, 3, 5), "shortlist": (3,), "full": (2,)}
PASSED_ON = ("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")


def follow_the_token(sign):
    """Make what follows a token depend on that token alone, for the model and, with ``sign`` 1, for
    its predictor too, which then is always right; with -1 it is always wrong."""

    def change(name, values):
        if name.endswith(PASSED_ON) or (name.startswith("mtp.") and values.ndim == 1):
            values.zero_()
        elif name == "mtp.fc.weight":
            values.zero_()
            values[:, : len(values)].fill_diagonal_(sign)
        elif name == "model.norm.weight":
            values.zero_()

    return change


@pytest.fixture(scope="module", params=["dense", "moe"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def artifact_of(kind, tiny_checkpoint, plugins, tmp_path_factory):
    """``(draft head, change) -> path`` of a converted model."""

    def make(head=None, change=None):
        folder = tmp_path_factory.mktemp(kind)
        tiny_checkpoint(folder / "hf", kind, change=change, num_hidden_layers=4)
        convert_checkpoint(
            open_source(folder / "hf"), folder / "model.ninfer", pack=PACKS[kind],
            registry=plugins.registry, draft_head=head,
        )
        return folder / "model.ninfer"

    return make


@pytest.mark.parametrize("head", HEADS)
def test_drafts_change_no_greedy_answer(artifact_of, plugins, head):
    path = artifact_of(HEADS[head])
    plain = serve(path, plugins)
    for drafts in DRAFTS[head]:
        options = {"spec": "mtp", "draft_tokens": drafts, "lm_head_draft": head != "own"}
        served = serve(path, plugins, **options)
        assert served.tokens == plain.tokens
        assert served.drafted > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_a_predictor_that_is_always_right_or_always_wrong(artifact_of, plugins, sign):
    path = artifact_of(change=follow_the_token(sign))
    served = serve(path, plugins, spec="mtp", draft_tokens=3)
    assert served.tokens == serve(path, plugins).tokens
    assert served.drafted > 0
    assert served.accepted == (served.drafted if sign == 1 else 0)


def test_a_model_serves_without_its_predictor(artifact_of, plugins):
    """Weights and state of components that are not in use are not asked for."""
    path = artifact_of()
    for spec in (None, "ngram", "mtp"):
        config = LaunchConfig(model=str(path), profile="cpu", max_context=256, spec=spec)
        plan = resolve(config, plugins)
        assert any(each.name.startswith("mtp/") for each in plan.parameters) == (spec == "mtp")
        assert ("mtp_kv" in [each.name for each in plan.states]) == (spec == "mtp")


def test_launches_are_the_ops_that_a_step_calls(kind, plugins, monkeypatch):
    bound, bind = [], Build.bind

    def counted(*arguments, **constants):
        kernel = bind(*arguments, **constants)  # or an error, where no kernel takes it
        bound.append(kernel)
        return kernel

    monkeypatch.setattr(Build, "bind", counted)
    lab(find_subject(plugins, f"qwen_{kind}"), "reference")
    sizes = PACKS[kind].operations(PACKS[kind].configure(PACKS[kind].tiny()))
    shared = 2  # table and head
    assert len(bound) == sizes["launches_per_step"] + sizes["launches_per_draft"] - shared


@pytest.mark.parametrize(("name", "value"), [("num_experts", 5), ("experts_per_token", 4)])
def test_experts_are_among_the_sizes(name, value):
    pack = PACKS["moe"]
    assert pack.operations(pack.configure(pack.tiny()))[name] == value
