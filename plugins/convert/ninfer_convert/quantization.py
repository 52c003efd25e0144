"""Which tensors of a safetensors checkpoint are quantised, and which belong to them: by their types
and by the scales beside them, never by the name of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_convert.quantized import Factor, Fp8Tensor, Nvfp4Tensor, QuantizedTensor
from ninfer_convert.safetensors_tensor import SafetensorsTensor
from ninfer_convert.scales import SCALE_TYPES, fit_scale
from ninfer_core.api import ArtifactError, SourceTensor

ROLES = (
    "weight_scale_inv", "weight_scale", "weight_scale_2", "weight_global_scale", "input_scale",
    "input_global_scale",
)
SUFFIXES = sorted(
    [*((mark + role, role) for role in ROLES for mark in "._"), ("_scale_inv", "weight_scale_inv")],
    key=lambda suffix: -len(suffix[0]),
)
"""Ends of the names of scales with their roles, the longest first: after a module's name (Linear)
or a parameter's (banks of experts)."""
OWNERS = {".weight": ".weight", ".weight_packed": ".weight", "_weight_packed": "", "": ""}
"""Ends of the names of quantised tensors, and what they are called here."""
QUANTIZED_TYPES = ("F8_E4M3", "U8")
KV_SCALES = (".k_scale", ".v_scale")

Tensors = Mapping[str, SafetensorsTensor]


def join_quantized(
    stored: Tensors, config: Mapping[str, Any]
) -> tuple[dict[str, SourceTensor], dict[str, str]]:
    """Tensors by name, each quantised one with its scales as a single tensor; and tensors that are
    left out, with the reason.

    A scale beside which there is no tensor is one of the quantised tensors right under its name
    (``table.weight_scale`` of ``table.shard_0.weight`` and the others); without any, it stays a
    tensor of its own, which no model has a place for.

    :param config: of the model; ``quantization_config`` may have the size of blocks.
    :raises ArtifactError: naming a quantised tensor that lacks a scale, has one too many, or one of
        another shape or type.
    """
    block, scales = _block_size(config), _scales_by_owner(stored)
    ignored = {
        name: "scale of a quantised KV cache; ours takes scales from what it stores"
        for name, tensor in stored.items()
        if name.endswith(KV_SCALES) and tensor.dtype in SCALE_TYPES
    }
    consumed = {each.name for roles in scales.values() for each in roles.values()} | {*ignored}
    joined: dict[str, SourceTensor] = {}
    for name, tensor in stored.items():
        if name in consumed:
            continue
        roles, public = scales.get(name, {}), _public_name(name)
        if public in joined:
            raise _misfit(name, f"there is another tensor for {public}")
        is_quantized = roles or public != name or tensor.dtype == "F8_E4M3"
        joined[public] = _join(public, tensor, roles, block) if is_quantized else tensor
    return joined, ignored


def _scales_by_owner(stored: Tensors) -> dict[str, dict[str, SafetensorsTensor]]:
    """Scales of each tensor by role."""
    found: dict[str, dict[str, SafetensorsTensor]] = {}
    pieces = _pieces(stored)
    for name, tensor in stored.items():
        suffix, role = next((each for each in SUFFIXES if name.endswith(each[0])), ("", ""))
        stem = name.removesuffix(suffix)
        owners = [stem + end for end in OWNERS if stem + end in stored] if role else []
        if len(owners) > 1:
            raise _misfit(name, f"it may be of {' or of '.join(owners)}")
        for owner in owners or (pieces.get(stem, []) if role else []):
            if found.setdefault(owner, {}).setdefault(role, tensor) is not tensor:
                raise _misfit(owner, f"it has two scales {role}")
    return found


def _pieces(stored: Tensors) -> dict[str, list[str]]:
    """Quantised tensors ``{name}.{piece}.weight`` by name."""
    found: dict[str, list[str]] = {}
    for name, tensor in stored.items():
        parent = name.removesuffix(".weight").rpartition(".")[0]
        if parent and name.endswith(".weight") and tensor.dtype in QUANTIZED_TYPES:
            found.setdefault(parent, []).append(name)
    return found


def _public_name(name: str) -> str:
    packed = next((end for end in OWNERS if end.endswith("_packed") and name.endswith(end)), "")
    return name.removesuffix(packed) + OWNERS[packed]


def _join(
    name: str, codes: SafetensorsTensor, roles: Mapping[str, SafetensorsTensor],
    block: tuple[int, int],
) -> SourceTensor:
    if codes.dtype not in QUANTIZED_TYPES or len(codes.shape) < 2:
        listed = ", ".join(roles) or "no scales"
        raise _misfit(codes.name, f"it is {codes.dtype} {[*codes.shape]}, and has {listed}")
    left = dict(roles)
    activation = _factor(codes, left, "input_scale", "input_global_scale", needed=False)
    common: dict[str, Any] = {"name": name, "codes": codes, "activation": activation}
    joined: QuantizedTensor
    if codes.dtype == "F8_E4M3":
        scale = _take(codes, left, "weight_scale_inv", "weight_scale")
        joined = Fp8Tensor(**common, scale=fit_scale(scale, codes.shape, block))
    else:
        groups = _group_scales(codes, left)
        factor = _factor(codes, left, "weight_scale_2", "weight_global_scale")
        joined = Nvfp4Tensor(**common, group_scales=groups, factor=factor)
    if left:
        raise _misfit(codes.name, f"as {codes.dtype} it should have no {', '.join(left)}")
    return joined


def _take(codes: SafetensorsTensor, left: dict[str, SafetensorsTensor], *roles: str) -> Any:
    """Remove the scale of one of these roles and return it."""
    found = [left.pop(role) for role in roles if role in left]
    if len(found) != 1:
        names = " and ".join(each.name for each in found) or "none"
        raise _misfit(codes.name, f"of {' or '.join(roles)} it needs one and has {names}")
    return found[0]


def _group_scales(codes: SafetensorsTensor, left: dict[str, SafetensorsTensor]) -> Any:
    """E4M3, one for 16 elements, which are 8 bytes."""
    groups, (*rows, width) = _take(codes, left, "weight_scale"), codes.shape
    if (groups.dtype, groups.shape) != ("F8_E4M3", (*rows, width // 8)) or width % 8:
        why = f"it is {groups.dtype} {[*groups.shape]}; {codes.name}, U8 {[*codes.shape]}, takes "
        raise _misfit(groups.name, f"{why} F8_E4M3, one for 8 bytes of a row")
    return groups


def _factor(
    codes: SafetensorsTensor, left: dict[str, SafetensorsTensor], multiplier: str, divisor: str,
    needed: bool = True,
) -> Any:
    if not needed and multiplier not in left and divisor not in left:
        return None
    divides = divisor in left
    return Factor(fit_scale(_take(codes, left, multiplier, divisor), codes.shape), divides)


def _block_size(config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of blocks: of Transformers' FP8, or of the groups of compressed-tensors."""
    quantization = _table(config, "quantization_config")
    groups = _table(quantization, "config_groups")
    found = [quantization.get("weight_block_size")]
    found += [_table(_table(groups, name), "weights").get("block_structure") for name in groups]
    sizes = {str(size): size for size in found if size} or {"": [128, 128]}
    match [*sizes.values()]:
        case [[int(rows), int(columns)]] if rows > 0 and columns > 0:
            return rows, columns
    why = f"quantization_config has not one size of blocks, but {', '.join(sizes)}"
    raise ArtifactError("cannot read a file", where="config.json", why=why)


def _table(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A member that is a table; empty if it is absent or null."""
    table = node.get(name) or {}
    if not isinstance(table, dict):
        raise ArtifactError("cannot read a file", where="config.json", why=f"{name} is no table")
    return table


def _misfit(name: str, why: str) -> ArtifactError:
    return ArtifactError("a quantised tensor is not understood", where=name, why=why)
