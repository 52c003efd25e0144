"""Steps of models with random weights: the command on a small one."""

import json

import pytest
import torch

from ninfer_bench.synthetic import fill
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.plugin_host import PluginSelection, load_plugins


def test_steps_of_every_size_are_measured(ninfer, tiny_model):
    code, out, _ = ninfer(
        "bench", "step", tiny_model, "--rows", "1,2", "--widths", "1,2", "--contexts", "70",
        "--prefill", "64", "--json", "-p", "ninfer_bench.plugin")
    assert code == 0
    found = json.loads(out)
    sizes = [(each["kind"], each["rows"], each["width"]) for each in found["steps"]]
    assert sizes == [("decode", 1, 1), ("decode", 1, 2), ("decode", 2, 1), ("decode", 2, 2),
                     ("prefill", 1, 64)]
    assert all(each["seconds"] > 0 for each in found["steps"])
    assert found["steps"][0]["bytes"] < found["steps"][2]["bytes"]  # the cache of two
    assert found["steps"][-1]["flops"] > 0 == found["steps"][0]["flops"]


@pytest.mark.parametrize("format_name, layout_name", [
    ("q4_g64_fp16", "row_split_k128_v1"), ("q6_g64_fp16", "row_split_k128_v1"),
    ("q8_g32_fp16", "row_split_k128_v1"), ("fp8_e4m3fn_row_bf16", "row_scale_v1"),
    ("fp8_e4m3fn_g128_fp32", "row_scale_g128_v1"), ("nvfp4", "block_scale_k16_plain_v1"),
    ("bf16", "contiguous_le_v1"), ("fp32", "contiguous_le_v1"),
])
def test_random_weights_are_words_of_their_formats(format_name, layout_name):
    """The codecs check them; products of them keep the size of their input."""
    registry = load_plugins(PluginSelection(names=())).registry
    layout = registry.layouts[layout_name].spec.layout.load()()
    nbytes = layout.nbytes(format_name, (64, 256))
    tensor = TensorObject("w", "tensor", (64, 256), format_name, layout_name, 0, nbytes)
    image, generator = torch.zeros(nbytes, dtype=torch.uint8), torch.Generator().manual_seed(1)
    planes = {info.name: fill(plane_view(image, info), info, tensor, generator)
              for info in layout.planes(format_name, (64, 256))}
    codec = registry.formats[format_name].spec.codec.load()()
    values = codec.dequantize(layout.unpack(format_name, (64, 256), planes))
    assert values.isfinite().all() and torch.count_nonzero(values) > 0.5 * values.numel()
    assert 0.3 < values.std() * 16 < 3
