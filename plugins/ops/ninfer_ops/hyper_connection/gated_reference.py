"""The ops of gated hyper-connections in FP64, token by token."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest


def bind_norm(request: KernelRequest, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    eps, groups = request.sizes["eps"], request.sizes["groups"]
    scale = weight.double() + (1.0 if request.sizes["unit_offset"] else 0.0)

    def grouped_rmsnorm(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            rows = x[t].double().view(groups, -1)
            normed = rows / (rows.square().mean(1, keepdim=True) + eps).sqrt()
            out[t] = normed.flatten() * scale
        return out

    return grouped_rmsnorm


def bind_silu(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    scale = request.sizes["scale"]

    def scaled_silu(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            out[t] = silu(scale * x[t].double())
        return out

    return scaled_silu


def bind_read(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    streams = (request.sizes["num_streams"], -1)

    def stream_read(gates: Tensor, normed: Tensor, out: Tensor) -> Tensor:
        for t in range(out.shape[0]):
            out[t] = (gates[t].double().sigmoid() * normed[t].double()).view(streams).mean(0)
        return out

    return stream_read


def bind_add(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count = request.sizes["num_streams"]

    def stream_add(y: Tensor, logits: Tensor, streams: Tensor) -> None:
        for t in range(y.shape[0]):
            shares = 2 * (logits[t].double() / count).sigmoid()
            added = shares[:, None] * y[t].double()
            streams[t] = streams[t].double() + added.flatten()

    return stream_add


def bind_gate(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    streams = (request.sizes["num_streams"], -1)

    def signed_sqrt_gate(k: Tensor, q: Tensor, v: Tensor, out: Tensor) -> Tensor:
        for t in range(v.shape[0]):
            score = (k[t].double() * q[t].double()).view(streams).sum(1) / v.shape[1] ** 0.5
            gate = (score.abs().clamp(min=1e-6).sqrt() * score.sign()).sigmoid()
            out[t] = (gate[:, None] * v[t].double()).flatten()
        return out

    return signed_sqrt_gate
