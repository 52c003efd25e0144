"""What goes wrong in a step."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import NInferError, RequestError
from ninfer_core.sampling.rows import SampleRow


class ModelError(NInferError):
    """The model computed nonsense."""


def fault_of(row: SampleRow, logits: Tensor) -> Exception:
    """Why nothing could be drawn from these logits ``[V]``."""
    if row.is_free:
        return not_finite()
    if row.fault is not None:
        return row.fault
    if row.mask is not None and not row.mask.any():
        return RequestError("no token may follow", why="what the request asks for forbids them all")
    if logits.isfinite().all():
        return RequestError("no token can be drawn", why="its penalties leave no finite logits",
                            fix="ask for penalties nearer to none")
    return not_finite()


def not_finite() -> ModelError:
    """Of logits."""
    return ModelError("the model failed", why="its logits are not finite")
