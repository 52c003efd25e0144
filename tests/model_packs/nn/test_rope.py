"""Tables of rotary positions: exact at far ones, and the axes of multimodal ones."""

import math

import pytest
import torch
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from ninfer_nn import mrope_axes, rope_frequencies, rope_tables, yarn_frequencies, yarn_scale


def test_tables_are_exact_at_far_positions():
    frequencies = rope_frequencies(6, 1e4)
    assert frequencies.tolist() == pytest.approx([1, 1e4 ** (-1 / 3), 1e4 ** (-2 / 3)], rel=1e-15)
    rope = rope_tables(frequencies, 300_000)
    assert rope.cos.shape == rope.sin.shape == (300_000, 3)
    assert rope.rotary_dim == 6 and rope.axes is None
    angle = 299_999 * frequencies[1].item()
    assert rope.cos[-1, 1].item() == pytest.approx(math.cos(angle), abs=1e-7)
    assert rope.sin[1].tolist() == pytest.approx(frequencies.sin().tolist(), abs=1e-7)


@pytest.mark.parametrize("changes", [
    {}, {"factor": 2.5, "original_max_position_embeddings": 32_768},
    {"beta_fast": 8.0, "beta_slow": 2.0}, {"partial_rotary_factor": 1.0, "rope_theta": 1e4},
    {"original_max_position_embeddings": 4},
])
def test_yarn_is_that_of_transformers(changes):
    """First as for Qwen's models at a million tokens."""
    given = {"rope_type": "yarn", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "factor": 4.0,
             "original_max_position_embeddings": 262_144, "mrope_section": [11, 11, 10]} | changes
    expected = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(head_dim=256, rope_parameters=given))
    frequencies = yarn_frequencies(
        int(256 * given["partial_rotary_factor"]), given["rope_theta"], factor=given["factor"],
        original=given["original_max_position_embeddings"],
        **{key: each for key, each in given.items() if key.startswith("beta")})
    assert torch.allclose(frequencies.float(), expected.inv_freq, rtol=1e-6)
    assert yarn_scale(given["factor"]) == pytest.approx(expected.attention_scaling)
    rope = rope_tables(frequencies, 20, scale=0.5)
    assert rope.cos.equal((0.5 * torch.outer(torch.arange(20), frequencies).cos()).float())


def test_sections_are_interleaved():
    """Those of Qwen3.5: 11 pairs turn by time, 11 by height, 10 by width."""
    axes = mrope_axes((11, 11, 10)).tolist()
    assert [axes.count(axis) for axis in range(3)] == [11, 11, 10]
    assert [i for i in range(32) if axes[i] == 0] == [*range(0, 31, 3)]
    assert [i for i in range(32) if axes[i] == 1] == [*range(1, 32, 3)]
    assert [i for i in range(32) if axes[i] == 2] == [*range(2, 30, 3)]
    assert mrope_axes((2, 1, 0)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("sections", [(11, 11, 10), (8, 12, 12), (16, 8, 8)])
def test_positions_by_axis_turn_as_those_of_transformers(sections):
    """An image of 4 x 6 patches between texts, as `get_rope_index` places it."""
    parameters = {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": list(sections),
    }
    config = Qwen3_5TextConfig(head_dim=256, rope_parameters=parameters)
    rows, columns = torch.arange(24) // 6, torch.arange(24) % 6
    image = 5 + torch.stack([torch.zeros(24, dtype=torch.int64), rows, columns])
    positions = torch.cat(
        [torch.arange(5).expand(3, 5), image, torch.arange(11, 20).expand(3, 9)], dim=1
    )
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(torch.empty(0), positions.unsqueeze(1))
    rope = rope_tables(rope_frequencies(64, 1e7), 64, axes=mrope_axes(sections))
    by_pair = positions[rope.axes].T  # [T, R/2]
    for table, expected in ((rope.cos, cos), (rope.sin, sin)):
        assert torch.allclose(table.gather(0, by_pair), expected[0, :, :32], atol=2e-6)
