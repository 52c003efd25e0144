"""Products of one input in one launch: against fp64, and against each product by itself."""

import pytest
import torch

from ninfer_triton_kernels.bindings import groups

PAIRS = [
    ("q4_g64_fp16", "q5_g64_fp16", "bf16"), ("nvfp4", "bf16"), ("fp8_e4m3fn_row_bf16", "bf16"),
    ("q8_g32_fp16", "fp32"), ("q4_1_g32_fp16", "q6_g64_fp16"), ("fp8_e4m3fn_g128_fp32", "nvfp4"),
]


def exact(weights, x):
    return torch.cat([x.double() @ weight.dense().double().T for weight in weights], 1)


def close(actual, expected):
    """Within the rounding of bf16; the interpreter cuts off instead of rounding."""
    error = (actual.double() - expected).norm(dim=0) / expected.norm(dim=0).clamp(min=0.1)
    return bool(error.max() < 2e-2) and not actual.isnan().any()


@pytest.fixture
def group(make_weight, bind):
    """``(names, heights, depth) -> (weights, kernel, reference)``."""

    def group(names, heights, depth, biases=None):
        weights = tuple(
            make_weight(name, rows, depth, seed=seed)
            for seed, (name, rows) in enumerate(zip(names, heights, strict=True)))
        biases = biases or (None,) * len(weights)
        return weights, *bind("linear_group", weights=weights, biases=biases)

    return group


@pytest.mark.parametrize("names", PAIRS)
def test_columns_of_each_product(names, group, randn, poisoned):
    """Ragged rows and columns; the result has a stride of its own."""
    heights = [72, 48, 10][: len(names)]
    weights, kernel, reference = group(names, heights, 160)
    x, width = randn(3, 200)[:, :160], sum(heights)
    out = poisoned(3, width + 8)
    assert close(kernel(x, out[:, :width]), exact(weights, x))
    assert out[:, width:].isnan().all()
    assert close(reference(x, poisoned(3, width)), exact(weights, x))


def test_bias_and_residual(group, randn):
    bias, rest, x = randn(32), randn(2, 64), randn(2, 64)
    weights, kernel, _ = group(("q4_g64_fp16", "bf16"), (32, 32), 64, (None, bias))
    expected = exact(weights, x) + rest.double()
    expected[:, 32:] += bias.double()
    stream = rest.clone()
    assert close(kernel(x, stream, stream), expected)


def test_company_changes_no_bit(group, randn, poisoned):
    _, kernel, _ = group(("q4_g64_fp16", "q5_g64_fp16", "bf16"), (48, 32, 16), 128)
    x = randn(19, 128)
    together = kernel(x, poisoned(19, 96))
    for rows in (slice(0, 1), slice(3, 7), slice(18, 19)):
        assert torch.equal(kernel(x[rows], poisoned(len(x[rows]), 96)), together[rows])


def test_what_is_behind_a_weight_is_not_its_own(group, randn, poisoned):
    """Rows of the last program beyond those of its weight are the next one's columns."""
    weights, kernel, _ = group(("bf16", "q4_g64_fp16"), (10, 72), 64)
    for _ in range(2):
        assert close(kernel(randn(2, 64), out := poisoned(2, 82)), exact(weights, randn(2, 64)))
        assert not out.isnan().any()


def test_many_rows_go_apart(group, randn, poisoned, monkeypatch):
    weights, kernel, _ = group(("q4_g64_fp16", "bf16"), (32, 16), 64)
    monkeypatch.setattr(groups, "kernel", None)
    x = randn(130, 64)
    assert close(kernel(x, poisoned(130, 48)), exact(weights, x))
