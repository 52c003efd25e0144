"""Which tensor of a checkpoint becomes what, and what is refused."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve, field, frozen
from torch import Tensor

from ninfer_checkpoints.selection import rows_of_heads, taps
from ninfer_core.api import ArtifactError, ModelDescription
from ninfer_pack_qwen_dense.pack import QwenDensePack
from ninfer_pack_qwen_moe.pack import QwenMoePack

ATTENTION = "model.layers.2.self_attn"


@frozen(eq=False)
class FakeTensor:
    """A tensor in memory, as a `SourceTensor`."""

    name: str
    values: Tensor
    format: str = "fp32"
    divisor: float | None = None

    @property
    def shape(self):
        return tuple(self.values.shape)

    def dense(self):
        return self.values

    def parts(self):
        extra = {} if self.divisor is None else {"divisor": torch.tensor(self.divisor)}
        return {"codes": self.values, "scales": self.values[..., ::2], **extra}

    def scalars(self):
        return {} if self.divisor is None else {"divisor": self.divisor}

    def __getitem__(self, index):
        if isinstance(index, int) and index >= len(self.values):
            raise IndexError(index)
        return evolve(self, values=self.values[index])


@frozen(eq=False)
class FakeSource:
    description: ModelDescription
    tensors: dict
    resources: dict = field(factory=dict)


class Table(dict):
    def __missing__(self, name):
        raise ArtifactError("the checkpoint lacks a tensor", why=name)


def source_of(pack, change=lambda tensors: tensors, *, mtp=True, **config):
    """A checkpoint of the tiny model, by the last name that each parameter may have."""
    tiny = pack.tiny()
    model = evolve(tiny, origin="huggingface", config={**tiny.config, **config})
    if not mtp:
        model = evolve(model, components={})
    sizes = {}
    parameters = pack.checkpoint_parameters(pack.configure(model))
    for parameter in (each for each in parameters if not each.spec.tied_to):
        name, shape = parameter.origins[-1].tensor, parameter.spec.shape
        rows = sizes.get(name, (0,))[0] + shape[0]
        sizes[name] = (shape[1], 1, shape[0]) if "conv1d" in name else (rows, *shape[1:])
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in sizes.items()}
    described = ModelDescription("huggingface", model.architectures, model.config)
    stored = {name: each if isinstance(each, FakeTensor) else FakeTensor(name, each)
              for name, each in change(tensors).items()}
    return FakeSource(described, Table(stored))


def plan_of(pack, *change, **options):
    source = source_of(pack, *change, **options)
    plan = pack.import_source(source)
    return source.tensors, plan, {each.spec.name: each for each in plan.parameters}


def renamed(old, new):
    return lambda tensors: {name.replace(old, new): each for name, each in tensors.items()}


@pytest.fixture(params=[QwenDensePack, QwenMoePack])
def pack(request):
    return request.param()


def test_a_plan_gives_what_the_model_wants(pack):
    _, plan, parameters = plan_of(pack)
    configs = {name: each["config"] for name, each in plan.components.items()}
    model = ModelDescription("artifact", (), configs["text"], configs)
    wanted = pack.parameters(pack.configure(model))
    assert [each.spec for each in parameters.values()] == [*wanted]
    assert plan.components["mtp"]["target"] == "text"
    assert plan.ignored == {}


def test_rows_of_queries_and_gates_alternate_by_heads():
    tensors, _, parameters = plan_of(QwenDensePack())
    heads = tensors[f"{ATTENTION}.q_proj.weight"].values.view(3, 2, 24, 48)
    for index, name in enumerate(("query", "gate")):
        found = parameters[f"text/layers/2/attention/{name}"]
        assert torch.equal(found.values(), heads[:, index].reshape(72, 48))
        assert torch.equal(found.parts()["scales"], heads[:, index].reshape(72, 48)[:, ::2])


def test_rows_of_the_recurrence_lie_one_below_the_other():
    tensors, _, parameters = plan_of(QwenDensePack())
    parts = [parameters[f"text/layers/0/gdn/{name}"].values() for name in ("query", "key", "value")]
    fused = tensors["model.layers.0.linear_attn.in_proj_qkv.weight"]
    assert torch.equal(torch.cat(parts), fused.values)


def test_convolutions_are_turned():
    tensors, _, parameters = plan_of(QwenDensePack())
    convolution = parameters["text/layers/0/gdn/convolution"].parts()["codes"]
    stored = tensors["model.layers.0.linear_attn.conv1d.weight"].values
    assert torch.equal(convolution, stored[:, 0].T)
    assert convolution.is_contiguous()


def test_decays_are_stored_in_fp32():
    def half(tensors):
        return {name: FakeTensor(name, each.bfloat16(), "bf16") for name, each in tensors.items()}

    _, _, parameters = plan_of(QwenDensePack(), half)
    formats = {name.rpartition("/")[2]: each.format for name, each in parameters.items()}
    assert {name for name, format in formats.items() if format == "fp32"} == {"a_log", "dt_bias"}
    assert parameters["text/layers/0/gdn/a_log"].parts().keys() == {"codes"}


def test_numbers_of_a_whole_matrix_are_those_of_its_pieces():
    def quantised(tensors):
        name = f"{ATTENTION}.q_proj.weight"
        return tensors | {name: FakeTensor(name, tensors[name], "nvfp4", 3.0)}

    _, _, parameters = plan_of(QwenDensePack(), quantised)
    for name in ("query", "gate"):
        found = parameters[f"text/layers/2/attention/{name}"]
        assert (found.format, found.scalars()) == ("nvfp4", {"divisor": 3.0})
        assert found.parts()["divisor"] == 3.0
    assert parameters["text/layers/2/attention/key"].scalars() == {}


@pytest.mark.parametrize("root", ["model.language_model.", "language_model.model.", "model."])
@pytest.mark.parametrize("head", ["lm_head.", "language_model.lm_head."])
def test_names_with_and_without_a_segment(pack, root, head):
    def rename(tensors):
        return renamed("lm_head.", head)(renamed("model.", root)(tensors))

    _, _, parameters = plan_of(pack, rename)
    assert parameters["text/final_norm"].sources == (f"{root}norm.weight",)
    assert parameters["text/output_head"].sources == (f"{head}weight",)
    assert parameters["mtp/final_norm"].sources == ("mtp.norm.weight",)


def test_vision_and_buffers_are_ignored_by_rule(pack):
    extra = ("model.visual.blocks.0.norm1.weight", "visual.patch_embed.proj.bias",
             f"{ATTENTION}.rotary_emb.inv_freq")
    _, plan, _ = plan_of(pack, lambda tensors: tensors | {name: torch.ones(1) for name in extra})
    assert plan.ignored.keys() == {*extra}
    assert all(plan.ignored.values())


def test_without_predictor_there_is_no_component(pack):
    _, plan, parameters = plan_of(pack, mtp=False)
    assert plan.components.keys() == {"text"}
    assert not [name for name in parameters if name.startswith("mtp/")]


def test_half_a_predictor_is_refused(pack):
    def drop(tensors):
        return {name: each for name, each in tensors.items() if name != "mtp.fc.weight"}

    with pytest.raises(ArtifactError, match=r"lacks a tensor.*mtp\.fc\.weight"):
        plan_of(pack, drop)


def test_a_tied_head_is_absent_or_a_copy(pack):
    table = "model.embed_tokens.weight"
    for copies in (
        lambda tensors: tensors, lambda tensors: tensors | {"lm_head.weight": tensors[table]},
    ):
        _, plan, parameters = plan_of(pack, copies, tie_word_embeddings=True)
        assert plan.components["text"]["config"]["tie_word_embeddings"]
        assert "text/output_head" not in parameters
        assert plan.ignored.keys() <= {"lm_head.weight"}


def test_a_head_of_its_own_is_not_tied_whatever_the_config_says(pack):
    def other(tensors):
        return tensors | {"lm_head.weight": -tensors["model.embed_tokens.weight"]}

    _, plan, parameters = plan_of(pack, other, tie_word_embeddings=True)
    assert not plan.components["text"]["config"]["tie_word_embeddings"]
    assert parameters["text/output_head"].sources == ("lm_head.weight",)


@pytest.mark.parametrize(("name", "shape"), [
    (f"{ATTENTION}.q_proj.weight", (143, 48)), (f"{ATTENTION}.k_proj.weight", (24, 47)),
    ("model.layers.0.linear_attn.in_proj_qkv.weight", (100, 48)),
    ("model.layers.0.linear_attn.conv1d.weight", (112, 4)), ("model.norm.weight", (48, 1)),
])
def test_a_tensor_of_another_shape_is_named_before_anything_is_read(pack, name, shape):
    with pytest.raises(ArtifactError, match=rf"another shape \[{name}\]"):
        plan_of(pack, lambda tensors: tensors | {name: torch.zeros(shape)})


def experts_as(form, tensors):
    """The tensors with the experts of each layer as banks, or one by one under other names."""
    found = {name: each for name, each in tensors.items() if ".experts." not in name}
    for prefix in {name.partition("experts.")[0] for name in tensors if ".experts." in name}:
        one = {part: [tensors[f"{prefix}experts.{e}.{part}_proj.weight"] for e in range(5)]
               for part in ("gate", "up", "down")}
        if form == "banks":
            gate_up = zip(one["gate"], one["up"], strict=True)
            found[f"{prefix}experts.gate_up_proj"] = torch.stack([torch.cat(e) for e in gate_up])
            found[f"{prefix}experts.down_proj"] = torch.stack(one["down"])
        else:
            found |= {f"{prefix}experts.{part}_proj.{e}.weight": each
                      for part, values in one.items() for e, each in enumerate(values)}
    return found


@pytest.mark.parametrize("form", ["banks", "by projection"])
def test_experts_in_every_form_are_the_same(form):
    _, _, expected = plan_of(QwenMoePack())
    _, _, parameters = plan_of(QwenMoePack(), lambda tensors: experts_as(form, tensors))
    assert parameters.keys() == expected.keys()
    for name, each in parameters.items():
        assert torch.equal(each.values(), expected[name].values()), name
        assert each.parent == expected[name].parent
        assert each.bank == ("/experts/" in name)


def test_a_bank_of_too_few_experts_is_named():
    def short(tensors):
        name = "model.layers.0.mlp.experts.down_proj"
        banks = experts_as("banks", tensors)
        return banks | {name: banks[name][:4]}

    with pytest.raises(ArtifactError, match=r"another shape \[model.layers.0.mlp.experts.down"):
        plan_of(QwenMoePack(), short)


def test_a_missing_expert_is_named():
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    with pytest.raises(ArtifactError, match=name):
        plan_of(QwenMoePack(), lambda tensors: {n: t for n, t in tensors.items() if n != name})


def test_parts_without_rows_stay():
    assert rows_of_heads(3, 0, 1)(torch.tensor(2.0)) == 2.0


def test_taps_are_rows():
    assert taps(torch.arange(6).view(3, 1, 2)).tolist() == [[0, 2, 4], [1, 3, 5]]
