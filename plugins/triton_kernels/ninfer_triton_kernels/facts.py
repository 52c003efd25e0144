"""What is known of the kernels' code on each card, from ``facts.json``: compiled at the shapes of
published models. Imports neither torch nor triton."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from ninfer_core.api import KernelRequest

SAME_CODE = {121: 120}
"""Cards that get the code of another."""


def describe(request: KernelRequest) -> str | None:
    """One line about the kernels of an op at these sizes; None if they were not compiled."""
    capability = SAME_CODE.get(request.capability, request.capability)
    found = table().get(str(capability), {}).get(key_of(request))
    if not found:
        return None
    return "; ".join(
        f"{each['kernel']} {each['registers']} registers"
        + (f", {each['spills']} B spilled" if each["spills"] else "")
        + f", {-(-each['shared'] // 1024)} KiB shared, {each['programs']} x {each['warps']} warps"
        for each in found
    )


def key_of(request: KernelRequest) -> str:
    """The op and the sizes that its code depends on."""
    weights = (f"{w.format.name} {'x'.join(map(str, w.shape))}" for w in request.weights)
    sizes = (f"{name}={value}" for name, value in sorted(request.sizes.items()))
    return " | ".join(filter(None, (request.op, *weights, request.kv_codec, *sizes)))


@cache
def table() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Capability -> key -> kernels, those of decode steps first."""
    text = files("ninfer_triton_kernels").joinpath("facts.json").read_text("utf-8")
    made: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(text)
    return made
