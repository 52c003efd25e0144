"""``sinkhorn_read``, ``sinkhorn_write`` and ``stream_mean`` in FP64. Whatever rounds otherwise in
another company (means, exponentials) is taken token by token; sums and quotients, one element of
all tokens at a time, do not."""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest


def bind_read(
    request: KernelRequest, base: Tensor, scale: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    count, iterations = request.sizes["num_streams"], request.sizes["iterations"]
    eps, norm_eps = request.sizes["eps"], request.sizes["norm_eps"]
    widths = [count, count, count * count]
    offsets = base.double()
    factors = torch.cat([each.expand(n) for each, n in zip(scale.double(), widths, strict=True)])

    def weights(products: Tensor, streams: Tensor) -> Tensor:
        """``[S (S + 2)]`` of one token, mixes not yet balanced."""
        norm = (streams.double().square().mean() + norm_eps).sqrt()
        pre, post, comb = (products.double() / norm * factors + offsets).split(widths)
        mixing = comb.view(count, count).softmax(1) + eps
        return torch.cat([pre.sigmoid() + eps, 2 * post.sigmoid(), mixing.flatten()])

    def sinkhorn_read(products: Tensor, streams: Tensor, out: Tensor, mix: Tensor) -> None:
        each = torch.stack([weights(*token) for token in zip(products, streams, strict=True)])
        pre, post, comb = each.split(widths, dim=1)
        mixing = _balanced(comb.unflatten(1, (count, count)), iterations, eps)
        out.copy_(_weighted(pre, _rows(streams, count)))
        mix.copy_(torch.cat([post, mixing.flatten(1)], dim=1))

    return sinkhorn_read


def _balanced(mixing: Tensor, iterations: int, eps: float) -> Tensor:
    """Columns and rows ``[T, S, S]`` that sum to 1 (Sinkhorn and Knopp, 1967)."""
    mixing = mixing / (_sum(mixing, 1) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (_sum(mixing, 2) + eps)
        mixing = mixing / (_sum(mixing, 1) + eps)
    return mixing


def _sum(values: Tensor, dim: int) -> Tensor:
    """Element by element, in order; the dimension stays."""
    total, *rest = values.unbind(dim)
    for each in rest:
        total = total + each
    return total.unsqueeze(dim)


def _rows(streams: Tensor, count: int) -> Tensor:
    return streams.double().unflatten(1, (count, -1))  # [T, S, H]


def _weighted(weights: Tensor, rows: Tensor) -> Tensor:
    return _sum(weights[:, :, None] * rows, 1).squeeze(1)


def bind_write(request: KernelRequest) -> Callable[[Tensor, Tensor, Tensor], None]:
    count = request.sizes["num_streams"]

    def sinkhorn_write(y: Tensor, mix: Tensor, streams: Tensor) -> None:
        post, comb = mix.double().tensor_split([count], dim=1)
        residual = _rows(streams, count)
        mixed = [_weighted(column, residual) for column in comb.unflatten(1, (count, -1)).unbind(2)]
        added = post[:, :, None] * y.double()[:, None]
        streams.copy_((added + torch.stack(mixed, dim=1)).flatten(1))

    return sinkhorn_write


def bind_mean(request: KernelRequest) -> Callable[[Tensor, Tensor], Tensor]:
    count = request.sizes["num_streams"]

    def stream_mean(streams: Tensor, out: Tensor) -> Tensor:
        return out.copy_(_sum(_rows(streams, count), 1).squeeze(1) / count)

    return stream_mean
