"""The toy pack: what the runtime asks of the toy architecture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from ninfer_core.api import (
    BuildContext,
    CheckpointSource,
    Frontend,
    ImportPlan,
    Model,
    PagedStateSpec,
    ParameterSpec,
    SlotStateSpec,
    StatePlane,
    StateSpec,
    UnsupportedError,
)
from ninfer_pack_toy.config import ToyConfig, configure, tiny
from ninfer_pack_toy.frontend import ToyFrontend
from ninfer_pack_toy.model import ToyModel


class ToyPack:
    """A `ModelPack` whose sequences own pages and slots."""

    configure = staticmethod(configure)
    tiny = staticmethod(tiny)

    def parameters(self, config: ToyConfig) -> tuple[ParameterSpec, ...]:
        table = ParameterSpec(
            "text/token_embedding", (config.vocab_size, config.hidden_size), "table"
        )
        norm = ParameterSpec("text/final_norm", (config.hidden_size,), "direct")
        head = ParameterSpec("text/output_head", table.shape, tied_to=table.name)
        layers = [
            _layer(config, f"text/layers/{index}", kind) for index, kind in enumerate(config.layers)
        ]
        predictor = _predictor(config) if config.predictor else ()
        return (table, *chain(*layers), norm, head, *predictor)

    def states(self, config: ToyConfig) -> tuple[StateSpec, ...]:
        """Keys and values of attention layers, states and raw inputs of recurrence layers."""
        head = (config.num_kv_heads, config.head_dim)
        planes = (StatePlane("key", head), StatePlane("value", head))
        size = config.state_size
        predictor = [PagedStateSpec("mtp_kv", 1, planes)] if config.predictor else []
        return (
            PagedStateSpec("kv", config.layers.count("a"), planes),
            SlotStateSpec("memory", config.layers.count("r"), (size,), (2 * size,)),
            *predictor,
        )

    def operations(self, config: ToyConfig) -> Mapping[str, Any]:
        heads = config.layers.count("a") * config.num_heads
        return {
            "vocab_size": config.vocab_size,
            "max_context": config.max_context,
            "attention_flops_per_token": 4 * heads * config.head_dim,
            "attention_width": config.num_heads * config.head_dim,
            "launches_per_step": 8 * len(config.layers) + 3,
        }

    def build(self, config: ToyConfig, context: BuildContext) -> Model:
        return ToyModel(config, context)

    def frontend(self, config: ToyConfig, resources: Mapping[str, bytes]) -> Frontend:
        return ToyFrontend()

    def import_source(self, source: CheckpointSource) -> ImportPlan:
        raise UnsupportedError("toy models are not imported", why="nobody trains them")


def _predictor(config: ToyConfig) -> Iterator[ParameterSpec]:
    hidden = config.hidden_size
    yield ParameterSpec("mtp/input_projection", (hidden, 2 * hidden))
    for name in ("embedding_norm", "hidden_norm", "final_norm"):
        yield ParameterSpec(f"mtp/{name}", (hidden,), "direct")
    yield from _layer(config, "mtp/layer", "a")


def _layer(config: ToyConfig, name: str, kind: str) -> Iterator[ParameterSpec]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (hidden,), **_mixer(config, kind),
        "post_mixer_norm": (hidden,), "mlp/gate": (inner, hidden), "mlp/up": (inner, hidden),
        "mlp/down": (hidden, inner),
    }
    for part, shape in shapes.items():
        yield ParameterSpec(f"{name}/{part}", shape, "projection" if len(shape) == 2 else "direct")


def _mixer(config: ToyConfig, kind: str) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    if kind == "r":
        into = (config.state_size, hidden)
        return {f"recurrence/{name}": into for name in ("gate", "value")} | {
            "recurrence/output": into[::-1]
        }
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attention/query": (query, hidden), "attention/key": (key, hidden),
        "attention/value": (key, hidden), "attention/output": (hidden, query),
    }
