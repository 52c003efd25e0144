"""What the runner makes of a model's logits."""

from types import SimpleNamespace

import torch

from ninfer_core.engine.runner import Runner
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.state.batch import Row


class PaddingModel:
    """Wants a padding id of its table above all."""

    def forward(self, batch):
        return torch.arange(8.0).expand(batch.num_logits, 8)


class Eager(Sampler):
    def likeliest(self, logits):
        return logits.argmax(-1)


def test_padding_ids_of_the_table_cannot_be_drawn():
    runner = Runner(
        PaddingModel(), Limits(128, 2), width=1, vocab_size=5, device="cpu", sampler=Eager())
    state = SimpleNamespace(pages=[1], slot=1, replay=0)
    row = Row(1, state, 0, [3], 1)
    logits, likeliest, inputs = runner.decode([row])
    assert logits.argmax(-1).tolist() == likeliest.tolist() == [4]
    assert inputs.tolist() == [3]
    assert runner.prefill(row).argmax(-1).tolist() == [4]
