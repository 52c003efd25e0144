"""A build context over random parameters and the reference kernels."""

from collections.abc import Mapping

import pytest
import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import (
    FormatSpec,
    KernelSpec,
    KVCodecSpec,
    PagedStateSpec,
    StatePlane,
    WeightInfo,
)
from ninfer_core.artifact.weight import Weight
from ninfer_core.engine.build import Build
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host.builtin import ninfer_kernels
from ninfer_core.state.store import StateStore

FP32 = FormatSpec("fp32", "unused.module:codec", 32)
KV = PagedStateSpec("kv", 1, (StatePlane("key", (2, 8)), StatePlane("value", (2, 8))))


class Plain:
    """Codec and layout of weights whose only plane is their values."""

    def unpack(self, format_name, shape, planes):
        return dict(planes)

    def dequantize(self, parts):
        return parts["codes"].clone()


@frozen
class Parameters:
    """Stands for a `WeightStore`."""

    values: Mapping[str, Tensor]

    def weight(self, *names: str) -> Weight:
        stacked = torch.cat([self.values[name] for name in names])
        info = WeightInfo(tuple(stacked.shape), FP32, "plain")
        return Weight(info, {"codes": stacked}, Plain(), Plain())

    def tensor(self, name: str) -> Tensor:
        return self.values[name]


@frozen
class Registered:
    spec: KernelSpec
    provenance: str = "core"


@pytest.fixture
def parameters():
    generator = torch.Generator().manual_seed(7)
    shapes = {
        "q": (32, 24), "k": (16, 24), "v": (16, 24), "o": (24, 32), "gate": (40, 24),
        "up": (40, 24), "down": (24, 40), "norm": (24,), "table": (50, 24), "head": (50, 24),
        "q_bias": (32,), "k_bias": (16,), "v_bias": (16,), "o_bias": (24,),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def context(parameters):
    kv = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
    store = StateStore(
        [KV], kv, num_pages=4, max_sequences=1, max_context=256, max_verify_rows=1
    )
    kernels = {spec.name: Registered(spec) for spec in ninfer_kernels()}
    return Build(
        Parameters(parameters), Binder(kernels, device="cpu"), store, torch.float32,
        torch.device("cpu"), max_tokens=80, max_logits=3, max_context=256,
    )
