"""The pack: everything the runtime asks of the Llama architecture."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_core import api
from ninfer_core.text.frontend import ChatFrontend
from ninfer_pack_smollm2.config import ARCHITECTURE, LlamaConfig, configure
from ninfer_pack_smollm2.importing import import_source
from ninfer_pack_smollm2.model import LlamaModel
from ninfer_pack_smollm2.parameters import parameters


class LlamaPack:
    """A `ModelPack` for any Llama, driven by its dimensions."""

    configure = staticmethod(configure)
    import_source = staticmethod(import_source)

    def parameters(self, config: LlamaConfig) -> tuple[api.ParameterSpec, ...]:
        return tuple(parameter.spec for parameter in parameters(config))

    def states(self, config: LlamaConfig) -> tuple[api.StateSpec, ...]:
        """Keys and values of every layer."""
        shape = (config.num_key_value_heads, config.head_dim)
        planes = (api.StatePlane("key", shape), api.StatePlane("value", shape))
        return (api.PagedStateSpec("kv", config.num_hidden_layers, planes),)

    def operations(self, config: LlamaConfig) -> Mapping[str, int]:
        """Each head meets each earlier token in two products of ``head_dim``."""
        heads = config.num_hidden_layers * config.num_attention_heads
        return {
            "vocab_size": config.vocab_size,
            "max_context": config.max_position_embeddings,
            "attention_flops_per_token": 4 * heads * config.head_dim,
            "attention_width": config.num_attention_heads * config.head_dim,
            "launches_per_step": 8 * config.num_hidden_layers + 3,
        }

    def build(self, config: LlamaConfig, context: api.BuildContext) -> LlamaModel:
        return LlamaModel(config, context)

    def frontend(self, config: LlamaConfig, resources: Mapping[str, bytes]) -> ChatFrontend:
        return ChatFrontend(resources)

    def tiny(self) -> api.ModelDescription:
        """Two layers of four heads in two groups, tied."""
        text = LlamaConfig(
            vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
            rms_norm_eps=1e-5, tie_word_embeddings=True,
        ).component()
        return api.ModelDescription("artifact", (ARCHITECTURE,), text, {"text": text})
