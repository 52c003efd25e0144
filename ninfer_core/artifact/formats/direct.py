"""`bf16`, `fp32`, `int32`: every element is its own word."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from attrs import frozen
from torch import Tensor

from ninfer_core.api import ArtifactError


@frozen
class DirectCodec:
    """Values of one torch dtype, of any shape; their only part is ``codes``."""

    dtype: torch.dtype

    def quantize(self, values: Tensor) -> dict[str, Tensor]:
        """`cast_direct`: to nearest even; infinities and NaN are kept.

        :raises ArtifactError: for values that are no integers, if the codes are.
        """
        codes = values.to(self.dtype)
        if not self.dtype.is_floating_point and not torch.equal(codes.double(), values.double()):
            raise ArtifactError(
                "values cannot be stored as integers", why=f"some are not of {self.dtype}",
                fix="choose another format for them",
            )
        return {"codes": codes}

    def dequantize(self, parts: Mapping[str, Tensor]) -> Tensor:
        """fp32; but integers stay int32, because fp32 has no indices above 2**24."""
        target = torch.float32 if self.dtype.is_floating_point else self.dtype
        return parts["codes"].to(target, copy=True)


bf16 = partial(DirectCodec, torch.bfloat16)
fp32 = partial(DirectCodec, torch.float32)
int32 = partial(DirectCodec, torch.int32)
