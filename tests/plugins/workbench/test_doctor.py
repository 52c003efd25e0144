"""``ninfer doctor`` and ``kernels``: what is wrong with a model, and what it would run on."""

from __future__ import annotations

import torch

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core.api import ParameterSpec
from ninfer_core.artifact.container import open_artifact
from ninfer_workbench.doctor import file_problems, files_row

NORM = "text/layers/1/input_norm"


def test_a_sound_model(ninfer, tiny_model):
    code, out, _ = ninfer("doctor", tiny_model)
    assert code == 0
    assert "skeleton_pack" in out and "21 of 21 parameters are bound" in out
    assert "reference.paged_attention" in out


def test_what_is_missing_and_left_over_is_named(ninfer, write_model):
    def rename(values):
        return {name.replace("input_norm", "odd") if name == NORM else name: value
                for name, value in values.items()}

    code, out, _ = ninfer("doctor", write_model(rename))
    assert code == 1
    assert "20 of 21 parameters are bound" in out and f"missing  {NORM}" in out
    assert "reference" not in out


def test_a_wrong_shape_is_named_with_both(ninfer, write_model):
    code, out, _ = ninfer("doctor", write_model(lambda v: v | {NORM: torch.ones(65)}))
    assert code == 1
    assert "[65] stored, [64] wanted" in out


def test_no_weight_is_read(ninfer, write_model):
    """The payload may be anything: only the catalogue counts."""
    path = write_model()
    catalogue_ends = 32 + int.from_bytes(path.read_bytes()[8:16], "little")
    raw = bytearray(path.read_bytes())
    start = -(-catalogue_ends // 4096) * 4096
    raw[start:] = b"\xff" * (len(raw) - start)
    path.write_bytes(raw)
    assert ninfer("doctor", path)[0] == 0


def test_a_missing_part_is_named(tmp_path):
    path, names = tmp_path / "set.ninfer", ("a", "b", "c")
    config = {"text": {"config": {"architectures": ["Any"]}}}
    with ArtifactWriter(path, components=config, max_file_bytes=8192) as writer:
        for name in names:
            image = torch.zeros(4096, dtype=torch.uint8)
            writer.add_tensor(name, (1024,), "fp32", "contiguous_le_v1", image)
            writer.bind(name, name)
    specs = [ParameterSpec(name, (1024,)) for name in names]
    artifact = open_artifact(path)
    assert list(file_problems(artifact, specs)) == []
    assert files_row(artifact)[1] == "3 of 3 are in use"
    (tmp_path / "set.ninfer.part-0002").unlink()
    artifact = open_artifact(path)
    assert list(file_problems(artifact, specs[:2])) == []
    [(kind, where, why)] = file_problems(artifact, specs)
    assert kind == "file" and where.endswith("set.ninfer.part-0002") and "No such file" in why


def test_kernels_lists_all_there_are(ninfer):
    code, out, _ = ninfer("kernels")
    assert code == 0
    assert {"embedding", "linear", "swiglu"} <= {line.split()[0] for line in out.splitlines()}


def test_kernels_of_a_model_are_the_chosen_ones(ninfer, tiny_model):
    code, out, _ = ninfer("kernels", tiny_model)
    assert code == 0
    assert "reference.swiglu" in out and "fp32 [192, 64]" in out


def test_an_op_without_a_kernel_is_an_error(ninfer, tiny_model):
    code, out, err = ninfer("kernels", tiny_model, "--kernel", "linear=reference.swiglu")
    assert code == 1 and not out
    assert "linear" in err and "reference.swiglu" in err
