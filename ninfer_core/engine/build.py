"""What a pack builds its model from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ninfer_core.api import HardwareProfile, KernelRequest, Model, ModelPack, PluginError
from ninfer_core.artifact.store import WeightStore
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.binder import Binder
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import PagedPlanes


class Build:
    """The `BuildContext` of one model on one machine."""

    def __init__(
        self, weights: WeightStore, binder: Binder, store: StateStore, profile: HardwareProfile,
        *, max_tokens: int, max_logits: int, max_context: int,
    ) -> None:
        self.weight, self.weight_runs, self.state = weights.weight, weights.weight_runs, store.view
        self.device = torch.device(profile.device)
        self.compute_dtype: torch.dtype = getattr(torch, profile.compute_dtype)
        self.max_tokens, self.max_logits, self.max_context = max_tokens, max_logits, max_context
        self._weights, self._binder = weights, binder
        self._buffers: dict[str, Tensor] = {}

    def tensor(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """A direct parameter in a dtype, else in the compute dtype."""
        return self._weights.tensor(name).to(dtype or self.compute_dtype)

    def bind(
        self, op: str, *, sizes: Mapping[str, Any] | None = None, **constants: Any
    ) -> Callable[..., Any]:
        """The kernel of an op; raises as `Binder.bind` does."""
        contract = self._binder.contracts.get(op)
        names = contract.weights if contract else sorted(constants)
        given = [constants.get(name) for name in names]
        weights = [each for one in given for each in (one if isinstance(one, tuple) else (one,))]
        codecs = [each.codec_name for each in constants.values() if isinstance(each, PagedPlanes)]
        request = KernelRequest(
            op=op, device=self._binder.device, capability=self._binder.capability,
            dtype=str(self.compute_dtype).removeprefix("torch."),
            weights=tuple(each.info for each in weights if isinstance(each, Weight)),
            kv_codec=codecs[0] if codecs else "", max_tokens=self.max_tokens, sizes=sizes or {},
        )
        return self._binder.bind(request, **constants)

    def buffer(
        self, name: str, width: int, *, dtype: torch.dtype | None = None
    ) -> Callable[[int], Tensor]:
        """Views of a shared ``[max_tokens, width]`` buffer, each made once."""
        shape, dtype = (self.max_tokens, width), dtype or self.compute_dtype
        if name not in self._buffers:
            self._buffers[name] = torch.empty(shape, dtype=dtype, device=self.device)
        whole = self._buffers[name]
        if whole.shape != shape or whole.dtype != dtype:
            why = f"{whole.dtype} x {whole.shape[1]} and {dtype} x {width}"
            raise PluginError("a buffer is asked for in two kinds", where=name, why=why)
        return cache(lambda num_tokens: whole[:num_tokens])


def build_model(
    pack: ModelPack, config: Any, *, weights: WeightStore, binder: Binder, store: StateStore,
    profile: HardwareProfile, max_tokens: int, max_logits: int, max_context: int,
) -> Model:
    """Build a model on loaded weights and allocated state."""
    sizes = {"max_tokens": max_tokens, "max_logits": max_logits, "max_context": max_context}
    return pack.build(config, Build(weights, binder, store, profile, **sizes))
