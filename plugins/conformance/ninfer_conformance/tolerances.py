"""Named tolerances, and comparisons that say what differed, where and by how much."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor


@frozen
class Tolerance:
    """``|actual - expected| <= absolute + relative * |expected|``, element by element."""

    name: str
    absolute: float
    relative: float = 0.0


_ALL = (
    Tolerance("exact", 0.0), Tolerance("fp32", 2e-4, 1e-4), Tolerance("bf16", 5e-2, 2e-2),
    Tolerance("fp4", 6e-1, 2e-1),
    Tolerance("bf16_kv", 5e-2), Tolerance("int8_kv", 1e-1), Tolerance("fp8_kv", 4e-1),
)
TOLERANCES = {tolerance.name: tolerance for tolerance in _ALL}
"""By the names that kernel specs and the checks use; those of KV codecs are for logits with a
standard deviation of about 1."""


def require(condition: object, detail: str) -> None:
    """Fail the check with ``detail`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(detail)


def require_close(actual: Tensor, expected: Tensor, what: str, tolerance: str = "exact") -> None:
    """Fail, naming the worst element, unless two tensors of one shape agree. NaN never agrees."""
    require(actual.shape == expected.shape, f"{what}: {actual.shape} instead of {expected.shape}")
    limit, wanted = TOLERANCES[tolerance], expected.double()
    error = (actual.double() - wanted).abs().nan_to_num(nan=float("inf"))
    beyond = ~(error <= limit.absolute + limit.relative * wanted.abs())
    if beyond.any():
        worst = tuple(int(index) for index in (error == error.max()).nonzero()[0])
        raise AssertionError(
            f"{what}: {int(beyond.sum())} of {error.numel()} elements are beyond '{limit.name}', "
            f"the worst at {worst}: {float(actual[worst]):.9g} instead of "
            f"{float(expected[worst]):.9g} (off by {float(error[worst]):.3g})"
        )
