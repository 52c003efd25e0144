"""What a pack builds its model from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from ninfer_core.api import HardwareProfile, KernelRequest, Model, ModelPack, PluginError
from ninfer_core.artifact.store import WeightStore
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.binder import Binder
from ninfer_core.ops.contracts import CONTRACTS
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import PagedPlanes


@define(eq=False)
class Build:
    """The `BuildContext` of one model on one machine."""

    weights: WeightStore
    binder: Binder
    store: StateStore
    compute_dtype: torch.dtype
    device: torch.device
    max_tokens: int
    max_logits: int
    max_context: int
    _buffers: dict[str, Tensor] = field(factory=dict, init=False)

    def weight(self, *names: str) -> Weight:
        """One parameter, or several stacked by rows."""
        return self.weights.weight(*names)

    def tensor(self, name: str) -> Tensor:
        """A direct parameter in the compute dtype."""
        return self.weights.tensor(name).to(self.compute_dtype)

    def state(self, name: str, layer: int) -> Any:
        """`PagedPlanes` or `SlotPlanes` of a declared state."""
        return self.store.view(name, layer)

    def bind(
        self, op: str, *, sizes: Mapping[str, Any] | None = None, **constants: Any
    ) -> Callable[..., Any]:
        """The kernel of an op; raises as `Binder.bind` does."""
        names = CONTRACTS[op].weights if op in CONTRACTS else sorted(constants)
        weights = [constants.get(name) for name in names]
        codecs = [each.codec_name for each in constants.values() if isinstance(each, PagedPlanes)]
        request = KernelRequest(
            op=op, device=self.binder.device, capability=self.binder.capability,
            dtype=str(self.compute_dtype).removeprefix("torch."),
            weights=tuple(each.info for each in weights if isinstance(each, Weight)),
            kv_codec=codecs[0] if codecs else "", max_tokens=self.max_tokens, sizes=sizes or {},
        )
        return self.binder.bind(request, **constants)

    def buffer(self, name: str, width: int) -> Callable[[int], Tensor]:
        """Views of a shared ``[max_tokens, width]`` buffer, each made once."""
        whole = self._buffers.get(name)
        if whole is None:
            whole = torch.empty(
                (self.max_tokens, width), dtype=self.compute_dtype, device=self.device
            )
            self._buffers[name] = whole
        if whole.shape[1] != width:
            why = f"{whole.shape[1]} and {width}"
            raise PluginError("a buffer is asked for in two widths", where=name, why=why)
        return cache(lambda num_tokens: whole[:num_tokens])


def build_model(
    pack: ModelPack, config: Any, *, weights: WeightStore, binder: Binder, store: StateStore,
    profile: HardwareProfile, max_tokens: int, max_logits: int, max_context: int,
) -> Model:
    """Build a model on loaded weights and allocated state."""
    dtype, device = getattr(torch, profile.compute_dtype), torch.device(profile.device)
    return pack.build(config, Build(
        weights, binder, store, dtype, device, max_tokens, max_logits, max_context
    ))
