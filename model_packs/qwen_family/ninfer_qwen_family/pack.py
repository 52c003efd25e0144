"""What the runtime asks of a Qwen hybrid, whatever its feed-forward blocks are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from ninfer_checkpoints.parameters import Block, Parameter
from ninfer_core import api
from ninfer_nn import RMSNorm, delta_net_states
from ninfer_qwen_family.config import QwenConfig, configure
from ninfer_qwen_family.frontend import QwenFrontend
from ninfer_qwen_family.importing import import_source
from ninfer_qwen_family.model import FeedForward, QwenModel
from ninfer_qwen_family.parameters import checkpoint_parameters, proposal_parameters

C = TypeVar("C", bound=QwenConfig)


class QwenPack(Generic[C]):
    """Base of the packs, each a `ModelPack` driven by dimensions.

    A subclass says what its config is and what a layer has behind its mixer.

    :cvar launches: of bound ops of a feed-forward block in a step.
    """

    config_class: type[C]
    launches: ClassVar[int]

    def feed_forward(self, config: C, block: Block) -> Iterable[Parameter]:
        """Parameters of the feed-forward block of a layer."""
        raise NotImplementedError

    def build_feed_forward(
        self, config: C, context: api.BuildContext, name: str, norm: RMSNorm
    ) -> FeedForward:
        """The feed-forward block of the layer ``name``, which reads the stream through ``norm``."""
        raise NotImplementedError

    def tiny_sizes(self) -> Mapping[str, Any]:
        """What a subclass adds to the tiny model's sizes."""
        raise NotImplementedError

    def configure(self, model: api.ModelDescription) -> C:
        return configure(self.config_class, model)

    def checkpoint_parameters(self, config: C) -> Iterable[Parameter]:
        """Those that checkpoints have."""
        return checkpoint_parameters(config, self.feed_forward)

    def parameters(self, config: C) -> tuple[api.ParameterSpec, ...]:
        known = (parameter.spec for parameter in self.checkpoint_parameters(config))
        return (*known, *proposal_parameters(config))

    def states(self, config: C) -> tuple[api.StateSpec, ...]:
        """Keys and values of attention layers; states and last columns of Gated DeltaNet."""
        shape = (config.num_key_value_heads, config.head_dim)
        planes = (api.StatePlane("key", shape), api.StatePlane("value", shape))
        return (
            api.PagedStateSpec("kv", len(config.ordinals("full_attention")), planes),
            *([api.PagedStateSpec("mtp_kv", 1, planes)] if config.mtp else []),
            *self.recurrent_states(config),
        )

    def recurrent_states(self, config: C) -> tuple[api.StateSpec, ...]:
        """Of all layers of Gated DeltaNet."""
        return delta_net_states(
            len(config.ordinals("linear_attention")),
            num_key_heads=config.linear_num_key_heads,
            num_value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim, value_dim=config.linear_value_head_dim,
            taps=config.linear_conv_kernel_dim,
        )

    def operations(self, config: C) -> Mapping[str, int]:
        """Each head meets each earlier token in two products of ``head_dim``."""
        attention = len(config.ordinals("full_attention"))
        recurrent = len(config.ordinals("linear_attention"))
        width = config.num_attention_heads * config.head_dim
        one = {"attention": 7 + self.launches, "recurrent": 8 + self.launches}  # of a layer
        return {
            "vocab_size": config.vocab_size,
            "max_context": config.max_context,
            "attention_flops_per_token": 4 * attention * width, "attention_width": width,
            "launches_per_step":
                3 + attention * one["attention"] + recurrent * one["recurrent"],
            **({"launches_per_draft": 6 + one["attention"]} if config.mtp else {}),
        }

    def build(self, config: C, context: api.BuildContext) -> api.Model:
        return QwenModel(config, context, self.build_feed_forward)

    def frontend(self, config: C, resources: Mapping[str, bytes]) -> QwenFrontend:
        return QwenFrontend(resources)

    def import_source(self, source: api.CheckpointSource) -> api.ImportPlan:
        config = self.configure(source.description)
        return import_source(config, self.checkpoint_parameters, source)

    def tiny(self) -> api.ModelDescription:
        """Two recurrent layers and one of attention, heads in groups of three, with MTP."""
        config = self.config_class(
            vocab_size=272, hidden_size=48, num_hidden_layers=3, max_position_embeddings=65_536,
            rms_norm_eps=1e-6,
            layer_types=("linear_attention", "linear_attention", "full_attention"),
            num_attention_heads=3, num_key_value_heads=1, head_dim=24, linear_num_key_heads=2,
            linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=8,
            linear_conv_kernel_dim=4, rope_theta=1e7, partial_rotary_factor=0.25,
            mrope_section=(1, 1, 1), mtp=True, **self.tiny_sizes(),
        )
        components = {name: each["config"] for name, each in config.components().items()}
        text = components["text"]
        return api.ModelDescription("artifact", (config.names.architecture,), text, components)
