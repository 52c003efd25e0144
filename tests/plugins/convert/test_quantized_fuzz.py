"""Any tensor with any scales beside it: read right, or refused by name."""

from __future__ import annotations

import math

import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError

F32, BF16, F16, F8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
NUMBERS = st.sampled_from([1e-3, 0.02, 1.0, 3e-5]) | st.sampled_from(
    [1e-3, 0.0, -1.0, math.nan, math.inf, 1e6, 1e-30])
TYPES = st.sampled_from([F32, F32, BF16, F16, F8, torch.uint8, torch.int8])
SHAPES = st.sampled_from(
    [(), (1,), (1, 1), (4,), (4, 1), (4, 2), (4, 4), (1, 2), (2,), (2, 1, 1), (2, 4, 2), (2, 4, 1)])
KINDS = [
    (F8, {"weight_scale"}), (F8, {"weight_scale_inv"}), (BF16, set()), (torch.int32, set()),
    (torch.uint8, {"weight_scale", "weight_scale_2"}), (torch.int8, {"weight_scale"}),
    (torch.uint8, {"weight_scale", "weight_global_scale"}),
]
ROLES = ["weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale",
         "input_scale", "input_global_scale"]


@st.composite
def checkpoints(draw):
    """A tensor with the scales of an exporter, of which some are changed, added or lost."""
    dtype, roles = draw(st.sampled_from(KINDS))
    shape = draw(st.sampled_from([(4, 32), (2, 4, 32)])) if draw(st.integers(0, 9)) else (32,)
    owner = draw(st.sampled_from(["x.weight", "x.weight_packed", "x"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    codes = (codes % 127).view(F8) if dtype == F8 else codes.to(dtype)
    if dtype == torch.uint8:
        codes = codes[..., :16]
    if draw(st.booleans()):
        roles = roles ^ draw(st.sets(st.sampled_from(ROLES), max_size=2))
    fitting = st.sampled_from([(), (1,), shape[:-2], (*shape[:-1], 1)])
    mark, tensors = "_" if owner == "x" else ".", {owner: codes}
    for role in sorted(roles):
        groups = dtype == torch.uint8 and role == "weight_scale"
        kind, size = (F8, (*shape[:-1], 2)) if groups else (F32, draw(fitting | SHAPES))
        kind = kind if draw(st.integers(0, 3)) else draw(TYPES)
        number = draw(NUMBERS) if kind.is_floating_point else 1
        tensors[f"x{mark}{role}"] = torch.full(size, number).to(kind)
    return tensors


def oracle(tensors):
    """The values of the checkpoint, or None if it is not one that has values."""
    owner, *names = tensors
    codes, roles = tensors[owner], {name[2:]: tensors[name] for name in names}
    if codes.dtype == BF16:
        return codes.float() if not roles and owner != "x.weight_packed" else None
    activation = [roles.pop(role) for role in [*roles] if role.startswith("input")]
    sound = len(activation) < 2 and all(is_factor(t, codes.shape) for t in activation)
    if codes.ndim < 2 or not sound:
        return None
    match codes.dtype, sorted(roles):
        case torch.float8_e4m3fn, ["weight_scale" | "weight_scale_inv" as role]:
            return fp8_oracle(codes, roles[role])
        case torch.uint8, ["weight_scale", "weight_scale_2"]:
            return nvfp4_oracle(codes, roles["weight_scale"], roles["weight_scale_2"], False)
        case torch.uint8, ["weight_global_scale", "weight_scale"]:
            return nvfp4_oracle(codes, roles["weight_scale"], roles["weight_global_scale"], True)
    return None


def is_factor(given, shape):
    """Whether it is one number, or one for each matrix."""
    bank = shape[:-2]
    alone = given.numel() == 1 and given.ndim <= len(shape)
    return given.dtype in (F32, BF16, F16) and (
        alone or (bool(bank) and given.shape in (bank, (*bank, 1), (*bank, 1, 1))))


def fp8_oracle(codes, given):
    *bank, rows, _ = codes.shape
    if is_factor(given, codes.shape):
        grid = given.view(*(bank if given.numel() > 1 else [1] * len(bank)), 1, 1)
    elif given.dtype in (F32, BF16, F16) and given.shape in ((*bank, rows), (*bank, rows, 1)):
        grid = given.view(*bank, rows, 1)
    else:
        return None
    grid, numbers = grid.double(), codes.double()
    misused = (grid == 0) & (numbers != 0)
    if not grid.isfinite().all() or grid.signbit().any() or misused.any() or numbers.isnan().any():
        return None
    return plausible(numbers * grid)


def nvfp4_oracle(codes, groups, number, divides):
    *bank, _, width = codes.shape
    fits = groups.dtype == F8 and groups.shape == (*codes.shape[:-1], width // 8)
    if not fits or not is_factor(number, codes.shape):
        return None
    factor, scales = number.double(), groups.double()
    if not ((factor > 0) & factor.isfinite()).all() or (scales.isnan() | scales.signbit()).any():
        return None
    factor = factor.view(*bank, 1, 1) if number.numel() > 1 else factor.view(())
    lanes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    numbers = E2M1[(lanes & 7).int()].double() * (1 - 2 * (lanes >> 3 & 1).double())
    products = numbers * scales.repeat_interleave(16, -1)
    return plausible(products / factor if divides else products * factor)


def plausible(values):
    sizes = values.abs().flatten(-2).amax(-1)
    fits = (sizes == 0) | (sizes >= 1e-12) & (sizes <= 1e4)
    return values.float() if fits.all() else None


@given(tensors=checkpoints())
@settings(max_examples=300, deadline=None)
def test_a_checkpoint_is_read_right_or_refused_by_name(join, tensors):
    expected = oracle(tensors)
    try:
        joined, _ = join(tensors)
        (name,) = joined
        tensor = joined[name]
        dense, parts = tensor.dense(), tensor.parts()
    except ArtifactError as error:
        assert error.where in tensors or error.where == "x.weight"
        assert expected is None, error
        return
    event('read')
    assert expected is not None
    torch.testing.assert_close(dense, expected, rtol=2e-7, atol=0)
    assert parts["codes"].shape == dense.shape
