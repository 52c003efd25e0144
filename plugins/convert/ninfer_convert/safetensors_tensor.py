"""A tensor of a safetensors file, or what lies at an index of it."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from ninfer_core.api import ArtifactError

FORMATS = {"F32": "fp32", "F16": "fp32", "BF16": "bf16"}
"""Types that are numbers by themselves, and the formats that hold them bit for bit."""


@frozen(eq=False)
class SafetensorsTensor:
    """Read when asked, and no more than asked.

    :ivar dtype: the file's name of its type.
    :ivar at: indices of the leading dimensions of the file's tensor at which this one lies.
    :ivar rows: its range of the dimension after those; empty if there is none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: tuple[int, ...]
    rows: range
    _file: Any

    @property
    def format(self) -> str:
        return FORMATS.get(self.dtype, "")

    def raw(self) -> Tensor:
        if not (self.shape or self.at):
            scalar: Tensor = self._file.get_tensor(self.name)
            return scalar
        rows = (slice(self.rows.start, self.rows.stop),) if self.shape else ()
        values: Tensor = self._file.get_slice(self.name)[(*self.at, *rows)]
        return values

    def parts(self) -> dict[str, Tensor]:
        return {"codes": self.dense() if self.format == "fp32" else self.raw()}

    def dense(self) -> Tensor:
        if not self.format:
            raise ArtifactError(
                "cannot read a tensor as numbers", where=self.name,
                why=f"it is {self.dtype} without scales; readable so are {', '.join(FORMATS)}",
            )
        return self.raw().float()

    def scalars(self) -> dict[str, float]:
        return {}

    def __getitem__(self, index: int | slice) -> SafetensorsTensor:
        rows, rest = self.rows[index], self.shape[1:]
        if isinstance(rows, int):
            return evolve(self, shape=rest, at=(*self.at, rows), rows=_first(rest))
        if rows.step != 1:
            raise IndexError(f"{self.name}: ranges have no steps")
        return evolve(self, shape=(len(rows), *rest), rows=rows)


def whole_tensor(name: str, file: Any) -> SafetensorsTensor:
    """The tensor of an open file (`safetensors.safe_open`); reads the file's header."""
    header = file.get_slice(name)
    shape = tuple(header.get_shape())
    return SafetensorsTensor(name, header.get_dtype(), shape, (), _first(shape), file)


def _first(shape: tuple[int, ...]) -> range:
    return range(shape[0] if shape else 0)
