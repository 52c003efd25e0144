"""Norms against fp64."""

import pytest
import torch

from ninfer_profile_cpu.kernels.launch import launch
from ninfer_profile_cpu.kernels.memory import bits_of_float
from ninfer_profile_cpu.kernels.norm import ROWS_PER_ITEM, rmsnorm_body

EPS = 1e-5


@pytest.fixture
def run(shared):
    def run(body, x, out, weight, extra):
        strides = 4 * x.stride(0), 4 * out.stride(0)
        launch(
            shared, body, x.shape[0], ROWS_PER_ITEM, x.data_ptr(), strides[0], out.data_ptr(),
            strides[1], weight.data_ptr(), weight.shape[0], bits_of_float(EPS), extra, 0,
        )
        return out

    return run


@pytest.mark.parametrize("width", [1, 15, 16, 17, 576])
@pytest.mark.parametrize("num_tokens", [1, 40])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rmsnorm(width, num_tokens, offset, run, randn, poisoned):
    rows, weight = poisoned(num_tokens, width + 9), randn(width, seed=2)
    rows[:, :width] = randn(num_tokens, width)
    x, out = rows[:, :width], poisoned(num_tokens, width + 5)
    run(rmsnorm_body(), x, out[:, :width], weight, bits_of_float(offset))
    exact = x.double()
    exact = exact / (exact.square().mean(1, keepdim=True) + EPS).sqrt() * (weight.double() + offset)
    assert torch.allclose(out[:, :width].double(), exact, rtol=1e-5, atol=1e-6)
    assert out[:, width:].isnan().all()


def test_rmsnorm_in_place_gives_the_same_bits_in_any_company(run, randn, poisoned):
    x, weight, body = randn(33, 100), randn(100, seed=2), rmsnorm_body()
    rows = [run(body, x[t : t + 1], poisoned(1, 100), weight, 0) for t in range(33)]
    assert torch.equal(run(body, x, x, weight, 0), torch.cat(rows))
