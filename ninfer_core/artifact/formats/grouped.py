"""`q4_g64_fp16` to `q8_g32_fp16`: signed codes, and an fp16 multiplier for each group of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from ninfer_core.api import ArtifactError

_CHUNK_ELEMENTS = 1 << 20
Quantize = Callable[[Any, Tensor], dict[str, Tensor]]


def by_rows(quantize: Quantize) -> Quantize:
    """Decorates a codec's ``quantize`` that treats rows alone: a large matrix takes little more
    memory than its values and its parts, because only a few rows at a time are worked on."""

    @wraps(quantize)
    def in_chunks(codec: Any, values: Tensor) -> dict[str, Tensor]:
        chunks = values.split(max(1, _CHUNK_ELEMENTS // values.shape[1]))
        pieces = [quantize(codec, chunk) for chunk in chunks]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    return in_chunks


@frozen
class GroupedCodec:
    """``w = scale * code``: ``codes`` int8 ``[N, K]``, ``scales`` fp16 ``[N, ceil(K / group)]``."""

    bits: int
    group: int

    @by_rows
    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """`grouped_absmax`; raises `ArtifactError` for values or scales that are not finite."""
        high = 2 ** (self.bits - 1) - 1
        low = -high if self.bits == 8 else -high - 1  # q8 has no code -128
        normal, scales = absmax_normalize(self._grouped(values.float()), high, torch.float16)
        codes = normal.round_().clamp_(low, high).to(torch.int8)  # round_: half to even
        return {"codes": codes.flatten(1)[:, : values.shape[1]].contiguous(), "scales": scales}

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32 ``[N, K]``: the fp32 product of code and scale.

        :raises ArtifactError: for words that the format does not have.
        """
        require(parts["scales"].isfinite().all(), "a scale is not finite")
        if self.bits == 8:
            require((parts["codes"] != -128).all(), "a code is -128")
        codes = self._grouped(parts["codes"].float())
        values = codes.mul_(parts["scales"].float().unsqueeze(-1)).flatten(1)
        return values[:, : parts["codes"].shape[1]].contiguous()

    def _grouped(self, matrix: Tensor) -> Tensor:  # [N, K] to [N, groups, group], filled with zeros
        rows, columns = matrix.shape
        return pad(matrix, (0, -columns % self.group)).view(rows, -1, self.group)


def absmax_normalize(groups: Tensor, limit: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Divide groups by scales of ``dtype`` that map the largest magnitude of each to ``limit``.

    :param groups: fp32 ``[..., G]``.
    :return: fp32 ``[..., G]``, not yet rounded to codes, and the scales ``[...]``.
    :raises ArtifactError: if a value, a scale or a quotient is not finite.
    """
    amax = torch.maximum(groups.amax(-1), -groups.amin(-1)).abs()  # abs: of -0
    # Divisions in fp64, because not every device rounds an fp32 division exactly.
    scales = (amax.double() / limit).float().to(dtype)
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    scales = scales.masked_fill((scales == 0) & (amax > 0), smallest)
    # The product with the rounded reciprocal is the definition; a division gives other codes.
    inverses = (1.0 / scales.double()).float()
    quotients = (groups * inverses.unsqueeze(-1)).masked_fill_((amax == 0).unsqueeze(-1), 0.0)
    if not (scales.isfinite().all() and quotients.isfinite().all()):
        raise ArtifactError(
            "values cannot be quantised", fix="correct the source, or store them as bf16 or fp32",
            why=f"a value is not finite, or its group needs a scale that {dtype} does not have",
        )
    return quotients, scales


def require(hold: Tensor | bool, why: str) -> None:
    """Raise `ArtifactError` unless stored words are those of their format; of words that are not
    there (``meta``) nothing is asked."""
    if not (isinstance(hold, Tensor) and hold.is_meta) and not hold:
        fix = "fetch or convert the model again"
        raise ArtifactError("stored weights are invalid", why=why, fix=fix)


q4_g64_fp16 = partial(GroupedCodec, 4, 64)
q5_g64_fp16 = partial(GroupedCodec, 5, 64)
q6_g64_fp16 = partial(GroupedCodec, 6, 64)
q8_g32_fp16 = partial(GroupedCodec, 8, 32)
