"""Quantised tensors of safetensors checkpoints: codes and scales as one tensor of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_convert.safetensors_tensor import SafetensorsTensor
from ninfer_convert.scales import Scale
from ninfer_core.api import ArtifactError
from ninfer_core.artifact.formats.minifloat import E2M1_MAGNITUDES, Nvfp4Codec
from ninfer_core.artifact.layouts.planar import unpack_bits

PLAUSIBLE = (1e-12, 1e4)
"""Between these lies the largest magnitude of every weight matrix that is not all zero. Quantisers
fill the range of their codes, so a scale in the place of its inverse misses it by orders: the
largest weight times 448 or 2688, squared."""


@frozen(eq=False)
class Factor:
    """A number for all matrices or for each; ``divides`` says which way it is meant."""

    scale: Scale
    divides: bool

    def divisor(self, at: tuple[int, ...]) -> Tensor:
        """fp32 ``[]``, what the matrix at these indices is divided by; it may be infinite."""
        value = self.scale.of_matrix(at).view(())
        return value if self.divides else 1 / value


@frozen(eq=False, kw_only=True)
class QuantizedTensor:
    """What both kinds share: everything is done for one matrix ``[N, K]``, banks are stacks of it.

    :ivar codes: as stored. :ivar name: of the whole. :ivar activation: of the product's input.
    """

    name: str
    codes: SafetensorsTensor
    activation: Factor | None

    @property
    def dtype(self) -> str:
        return self.codes.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def format(self) -> str:
        raise NotImplementedError

    def raw(self) -> Tensor:
        return self.codes.raw()

    def parts(self) -> dict[str, Tensor]:
        if len(self.shape) == 2:
            return self._parts()
        matrices = [matrix.parts() for matrix in self._matrices()]
        return {name: torch.stack([each[name] for each in matrices]) for name in matrices[0]}

    def dense(self) -> Tensor:
        if len(self.shape) == 2:
            return self._dense()
        return torch.stack([matrix.dense() for matrix in self._matrices()])

    def scalars(self) -> dict[str, float]:
        if self.activation is None or len(self.shape) > 2:
            return {}
        return {"activation_input_divisor": self.activation.divisor(self.codes.at).item()}

    def __getitem__(self, index: int | slice) -> QuantizedTensor:
        return evolve(self, codes=self._codes_at(index))

    def _codes_at(self, index: int | slice) -> SafetensorsTensor:
        codes = self.codes[index]
        if len(codes.shape) < 2:
            raise IndexError(f"{self.name}: rows of a quantised matrix are read in ranges")
        return codes

    def _matrices(self) -> Iterator[QuantizedTensor]:
        return (self[index] for index in range(self.shape[0]))

    def _parts(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _dense(self) -> Tensor:
        raise NotImplementedError


@frozen(eq=False, kw_only=True)
class Fp8Tensor(QuantizedTensor):
    """E4M3 numbers, multiplied by a scale for the tensor, a row or a block. With powers of two for
    fewer than 128 columns (MXFP8) they are numbers of bf16."""

    scale: Scale

    @property
    def format(self) -> str:
        if self._by_rows and self.scale.is_bf16:
            return "fp8_e4m3fn_row_bf16"
        if self._by_rows or self.scale.block[1] % 128 == 0:
            return "fp8_e4m3fn_g128_fp32"
        return "bf16" if self.scale.is_power else ""

    @property
    def _by_rows(self) -> bool:
        return self.scale.block[1] >= self.shape[-1]

    def _parts(self) -> dict[str, Tensor]:
        if self.format == "bf16":
            return {"codes": self._as_bf16()}
        codes, scales = self._verified()
        if self.format == "fp8_e4m3fn_row_bf16":
            return {"codes": codes, "scales": scales[:, 0].bfloat16()}
        columns = torch.arange(0, self.shape[-1], 128) // self.scale.block[1]
        return {"codes": codes, "scales": scales[:, columns]}

    def _dense(self) -> Tensor:
        codes, scales = self._verified()
        values = codes.float()
        columns = values.split(self.scale.block[1], 1)
        for block, scale in zip(columns, scales.split(1, 1), strict=True):
            block.mul_(scale)
        return values

    def _as_bf16(self) -> Tensor:
        values = self._dense()
        words = values.bfloat16()
        if not torch.equal(words.float(), values):
            raise _damaged(self.scale.tensor.name, "weights under it are too small for bf16")
        return words

    def _verified(self) -> tuple[Tensor, Tensor]:
        """Codes and fp32 scales ``[N, columns of blocks]``, after a look at what they give."""
        codes, (height, width) = self.codes.raw(), self.scale.block
        rows = torch.arange(self.codes.rows.start, self.codes.rows.stop) // height
        scales = self.scale.of_matrix(self.codes.at)[rows]
        words = codes.view(torch.uint8) & 127  # magnitudes, in the order of their values
        largest = torch.stack([block.amax(1) for block in words.split(width, 1)], 1)
        largest_values = largest.view(torch.float8_e4m3fn).float()
        if largest_values.isnan().any():
            raise _damaged(self.name, "a code is NaN")
        if largest_values[scales == 0].any():
            raise _damaged(self.scale.tensor.name, "a scale is 0, and weights under it are not")
        _require_plausible(largest_values * scales, self.name, self.scale.tensor.name)
        return codes, scales


@frozen(eq=False, kw_only=True)
class Nvfp4Tensor(QuantizedTensor):
    """E2M1 numbers, two a byte, multiplied by an E4M3 scale for 16 of a row, and multiplied or
    divided by a number for the matrix."""

    group_scales: SafetensorsTensor
    factor: Factor

    @property
    def shape(self) -> tuple[int, ...]:
        *rows, packed = self.codes.shape
        return (*rows, 2 * packed)

    @property
    def format(self) -> str:
        return "nvfp4"

    def scalars(self) -> dict[str, float]:
        divisor = {} if len(self.shape) > 2 else {"divisor": self._divisor().item()}
        return divisor | super().scalars()

    def __getitem__(self, index: int | slice) -> Nvfp4Tensor:
        return evolve(
            self, codes=self._codes_at(index), group_scales=self.group_scales[index]
        )

    def _parts(self) -> dict[str, Tensor]:
        codes, scales = unpack_bits(self.codes.raw(), 4), self.group_scales.raw()
        if (scales.view(torch.uint8) > 0x7E).any():
            raise _damaged(self.group_scales.name, "a scale is negative or NaN")
        divisor = self._divisor()
        largest = (codes & 7).unflatten(1, (-1, 16)).amax(2)  # in the order of their values
        values = torch.tensor(E2M1_MAGNITUDES)[largest.int()] * scales.float() / divisor
        _require_plausible(values, self.name, self.factor.scale.tensor.name)
        return {"codes": codes, "scales": scales, "divisor": divisor}

    def _dense(self) -> Tensor:
        return Nvfp4Codec().dequantize(self._parts())

    def _divisor(self) -> Tensor:
        divisor = self.factor.divisor(self.codes.at)
        if not 0 < divisor < torch.inf:
            name = self.factor.scale.tensor.name
            raise _damaged(name, "it is 0, or so small that its inverse is infinite")
        return divisor


def _require_plausible(magnitudes: Tensor, name: str, scale: str) -> None:
    low, high = PLAUSIBLE
    largest = magnitudes.amax().item() if magnitudes.numel() else 0.0
    if largest and not low <= largest <= high:
        raise ArtifactError(
            "a quantised tensor is not plausible", where=name,
            why=f"with {scale}, its largest weight would be {largest:.3g}, which is not within "
            f"{low} to {high}; as it seems, the scale is stored as its inverse",
            fix="export the checkpoint again: weight_scale, weight_scale_inv and weight_scale_2 "
            "multiply, weight_global_scale divides",
        )


def _damaged(name: str, why: str) -> ArtifactError:
    fix = "fetch the checkpoint again"
    return ArtifactError("a quantised tensor is damaged", where=name, why=why, fix=fix)
