"""Lifetimes: native code sees addresses, so somebody must keep what lies there."""

from collections.abc import Callable
from typing import Any, TypeVar

Call = TypeVar("Call", bound=Callable[..., Any])


def owning(call: Call, *objects: object) -> Call:
    """``call``, which now keeps ``objects`` alive."""
    vars(call)["owned"] = objects
    return call
