"""The file of log probabilities: what is written is read, and by others too."""

import io

import pytest
import torch
from safetensors.torch import load_file

from ninfer_core.api import ArtifactError, CapacityError
from ninfer_perplexity.log_probs import LogProbReader, LogProbWriter, require_space


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log_probs.safetensors"


def write(path, *texts):
    sizes = {f"text {index}": len(text) for index, text in enumerate(texts)}
    with path.open("wb") as file:
        writer = LogProbWriter(file, sizes, texts[0].shape[1])
        for text in texts:
            for block in text.split(3):
                writer.write(block)


def test_what_is_written_is_read(path):
    texts = [torch.randn(rows, 11, dtype=torch.float64) * 9 for rows in (1, 8, 5)]
    write(path, *texts)
    assert [*load_file(path)] == ["text 0", "text 1", "text 2"]
    reader = LogProbReader(path)
    for index, text in enumerate(texts):
        assert torch.equal(load_file(path)[f"text {index}"], text.half())
        for begin, end in ((0, len(text)), (0, 1), (len(text) - 1, len(text))):
            assert torch.equal(reader.rows(f"text {index}", begin, end), text[begin:end].half())


def test_what_is_not_there(path):
    with pytest.raises(ArtifactError, match=r"log_probs\.safetensors"):
        LogProbReader(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(ArtifactError, match="--save-logits"):
        LogProbReader(path)
    write(path, torch.zeros(4, 3))
    with pytest.raises(ArtifactError, match="reference"):
        LogProbReader(path).rows("text 1", 0, 1)
    with pytest.raises(ArtifactError, match="other targets"):
        LogProbReader(path).rows("text 0", 3, 5)


def test_the_size_is_known_before_the_first_byte(path):
    file = io.BytesIO()
    LogProbWriter(file, {"a": 10, "b": 1}, 8)
    header = len(file.getvalue())
    write(path, torch.zeros(10, 8), torch.zeros(1, 8))
    assert header % 8 == 0 and abs(path.stat().st_size - header - 11 * 8 * 2) <= 16


def test_no_room(tmp_path):
    require_space(tmp_path, 1)
    with pytest.raises(CapacityError, match=r"1,000,000,000,000,000 bytes, and [\d,]+ are free"):
        require_space(tmp_path, 10**15)
