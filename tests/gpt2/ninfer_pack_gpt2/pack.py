"""The pack: everything the runtime asks of the architecture."""

from collections.abc import Mapping

from torch import Tensor

from ninfer_core import api
from ninfer_core.text.frontend import ChatFrontend
from ninfer_pack_gpt2.config import Gpt2Config, component, configure, tiny
from ninfer_pack_gpt2.model import Gpt2Model
from ninfer_pack_gpt2.parameters import Parameter, parameters

JOINED = b"{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The chat template of checkpoints without one."""
NO_PARAMETERS = (".attn.bias", ".attn.masked_bias", "lm_head.weight")


class Gpt2Pack:
    """A `ModelPack`; docs/adding-a-pack.md goes through its methods."""

    configure = staticmethod(configure)
    tiny = staticmethod(tiny)

    def parameters(self, config: Gpt2Config) -> tuple[api.ParameterSpec, ...]:
        return tuple(parameter.spec for parameter in parameters(config))

    def states(self, config: Gpt2Config) -> tuple[api.StateSpec, ...]:
        head = (config.n_head, config.n_embd // config.n_head)
        planes = tuple(api.StatePlane(name, head) for name in ("key", "value"))
        return (api.PagedStateSpec("kv", config.n_layer, planes),)

    def operations(self, config: Gpt2Config) -> Mapping[str, int]:
        return {
            "vocab_size": config.vocab_size, "max_context": config.n_positions,
            "attention_flops_per_token": 4 * config.n_layer * config.n_embd,
            "attention_width": config.n_embd,
            "launches_per_step": 9 * config.n_layer + 4,
        }

    def build(self, config: Gpt2Config, context: api.BuildContext) -> Gpt2Model:
        return Gpt2Model(config, context)

    def frontend(self, config: Gpt2Config, resources: Mapping[str, bytes]) -> ChatFrontend:
        return ChatFrontend({"chat_template.jinja": JOINED, **resources})

    def import_source(self, source: api.CheckpointSource) -> api.ImportPlan:
        config, tensors = configure(source.description), source.tensors
        prefix = "transformer." if "transformer.wte.weight" in tensors else ""
        stored = [parameter for parameter in parameters(config) if not parameter.spec.tied_to]
        return api.ImportPlan(
            components={"text": {"config": component(config)}},
            parameters=tuple(_import(each, tensors[prefix + each.source]) for each in stored),
            resources=source.resources,
            ignored={n: "a mask, or tied" for n in tensors if n.endswith(NO_PARAMETERS)},
            recipe=(api.StorageChoice("*"),),
        )


def _import(parameter: Parameter, tensor: api.SourceTensor) -> api.ImportedParameter:
    spec, begin = parameter.spec, parameter.begin

    def rows(values: Tensor) -> Tensor:
        whole = values.T if spec.kind == "projection" else values
        return whole[begin : begin + spec.shape[0]].contiguous()

    return api.ImportedParameter(
        spec, (tensor.name,), lambda: rows(tensor.dense()),
        lambda: {name: rows(part) for name, part in tensor.parts().items()},
        tensor.format, parameter.parent,
    )
