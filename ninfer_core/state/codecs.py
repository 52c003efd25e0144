"""Storage types of the KV cache.

They work on the last dimension. A non-finite component never decodes to a finite one, so that a
broken state is seen instead of stored away.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

PlaneShapes = tuple[tuple[str, str, tuple[int, ...]], ...]


class DirectCodec:
    """Values cast to a torch dtype, to nearest even: in bf16, an error of at most 2^-8 |x|."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def planes(self, shape: tuple[int, ...]) -> PlaneShapes:
        return (("values", self._dtype, shape),)

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        return {"values": values.to(getattr(torch, self._dtype))}

    def decode(self, stored: Mapping[str, Tensor]) -> Tensor:
        return stored["values"].float()


Fp32Codec = partial(DirectCodec, "float32")
Bf16Codec = partial(DirectCodec, "bfloat16")


class Int8Codec:
    """Symmetric int8; an fp16 scale per 64 components, the last of which may be fewer.

    ``s = fp16(max(max|x| / 127, 2^-24))``, ``code = clamp(round(x / s), -127, 127)`` with halves to
    even, ``x' = code s``. The error is at most ``0.57 max|x| / 127 + 127 2^-25``; beyond
    ``127 * 65504`` values become infinite.
    """

    GROUP = 64

    def planes(self, shape: tuple[int, ...]) -> PlaneShapes:
        groups = -(-shape[-1] // self.GROUP)
        return (("codes", "int8", shape), ("scales", "float16", (*shape[:-1], groups)))

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        dim = values.shape[-1]
        padded = pad(values, (0, -dim % self.GROUP))
        grouped = padded.view(*values.shape[:-1], -1, self.GROUP)
        scales = (grouped.abs().amax(-1) / 127).clamp_(min=2.0**-24).half()
        codes = (grouped / scales.float().unsqueeze(-1)).round_().clamp_(-127, 127)
        return {"codes": codes.flatten(-2)[..., :dim].to(torch.int8), "scales": scales}

    def decode(self, stored: Mapping[str, Tensor]) -> Tensor:
        codes = stored["codes"]
        scales = stored["scales"].float().repeat_interleave(self.GROUP, -1)
        return codes * scales[..., : codes.shape[-1]]


class Fp8Codec:
    """FP8 E4M3FN; an fp32 scale per vector (token and head).

    ``s = max(max|x| / 448, 2^-126)``, ``code = e4m3fn(x / s)`` rounding to nearest even,
    ``x' = code s``. The error is at most ``2^-4 |x| + 2^-10 s``.
    """

    def planes(self, shape: tuple[int, ...]) -> PlaneShapes:
        return (("codes", "float8_e4m3fn", shape), ("scales", "float32", shape[:-1]))

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        scales = (values.abs().amax(-1) / 448).clamp_(min=2.0**-126)
        codes = (values / scales.unsqueeze(-1)).to(torch.float8_e4m3fn)
        return {"codes": codes, "scales": scales}

    def decode(self, stored: Mapping[str, Tensor]) -> Tensor:
        return stored["codes"].float() * stored["scales"].unsqueeze(-1)
