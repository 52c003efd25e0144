"""A pack with one mistake makes the right check fail, and the failure says where."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor

from ninfer_core.api import Claim, OutputPart, ToolCall
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_core.text.parsers import PlainParser
from ninfer_pack_toy.frontend import CONTROLS, ByteTokenizer, ToyFrontend
from ninfer_pack_toy.model import Recurrence, ToyModel
from ninfer_pack_toy.pack import ToyPack
from ninfer_pack_toy.predictor import ToyPredictor
from ninfer_pack_toy.recurrence import recur

CLOCK = count(1)
Recur = Callable[[Tensor, StepBatch, SlotPlanes, Tensor], Tensor]


def pack_with(**methods: Any) -> ToyPack:
    """A toy pack with other methods."""
    return type("Mutant", (ToyPack,), methods)()


def building(model: type[ToyModel], **methods: Any) -> ToyPack:
    """A toy pack that builds another model."""
    return pack_with(build=lambda self, config, context: model(config, context), **methods)


def recurring(function: Recur) -> ToyPack:
    """A toy pack with another recurrence."""
    mixer = type("Mutant", (Recurrence,), {"recur": staticmethod(function)})
    return building(type("Mutant", (ToyModel,), {"recurrence": mixer}))


def speaking(**methods: Any) -> ToyPack:
    """A toy pack with another frontend."""
    frontend = type("Mutant", (ToyFrontend,), methods)()
    return pack_with(frontend=lambda self, config, resources: frontend)


def without_rollback(raw, batch, planes, out):
    """All rows advance the committed state, whether they may be rejected or not."""
    ones, zeros = torch.ones_like(batch.certain), torch.zeros_like(batch.replay)
    return recur(raw, evolve(batch, certain=ones, replay=zeros), planes, out)


def replaying_one_too_few(raw, batch, planes, out):
    return recur(raw, evolve(batch, replay=(batch.replay - 1).clamp(min=0)), planes, out)


def replaying_one_too_many(raw, batch, planes, out):
    more = torch.where(batch.replay > 0, (batch.replay + 1).clamp(max=4), 0)
    return recur(raw, evolve(batch, replay=more), planes, out)


def forgetting_between_steps(raw, batch, planes, out):
    planes.committed[batch.slots[: batch.num_rows].long()] = 0
    return recur(raw, batch, planes, out)


def feeling_company(raw, batch, planes, out):
    return recur(raw + 0.1 * batch.num_rows, batch, planes, out)


def reading_padding(raw, batch, planes, out):
    """What lies in slot 0 flows into every state, with a weight of zero."""
    return recur(raw + 0 * planes.committed[0].sum(), batch, planes, out)


class CountingFromChunk(ToyModel):
    """Positions begin anew with every chunk."""

    def forward(self, batch: StepBatch) -> Tensor:
        start = batch.context_len[batch.token_row.long()]
        return super().forward(evolve(batch, positions=batch.positions - start))


class WithoutHead(ToyModel):
    """The embedding is used twice, the head never."""

    head = "text/token_embedding"


def predicting(**methods: Any) -> ToyPack:
    """A toy pack with another predictor."""
    predictor = type("Mutant", (ToyPredictor,), methods)
    return building(type("Mutant", (ToyModel,), {"predict": predictor}))


def remembering(self, batch, hidden):
    """A hidden state stands in for the one that it follows on a draft of one token."""
    last, self.last = getattr(self, "last", hidden[:1]), hidden[:1].clone()
    return ToyPredictor.forward(self, batch, hidden if batch.num_tokens > 1 else last)


def misplacing(self, batch, hidden):
    """Positions begin anew with every step."""
    start = batch.context_len[batch.token_row.long()]
    return ToyPredictor.forward(self, evolve(batch, positions=batch.positions - start), hidden)


def leaning(self, batch, hidden):
    """Logits depend on how many sequences predict together."""
    logits, own = ToyPredictor.forward(self, batch, hidden)
    return logits + 0.1 * batch.num_rows * logits.roll(1, -1), own


class Tuned(ToyModel):
    """With a predictor the text is computed otherwise."""

    def forward(self, batch):
        return super().forward(batch) * (1.5 if self.predictor else 1)


def untied(self, config):
    return tuple(evolve(each, tied_to="") for each in ToyPack().parameters(config))


def greedy_states(self, config):
    """State of the predictor, whether there is one or not."""
    return ToyPack().states(evolve(config, predictor=True))


def undeclared(self, config):
    return tuple(each for each in ToyPack().parameters(config) if "head" not in each.name)


class HastyParser(PlainParser):
    """Sees a closing tag only where it arrives whole."""

    def feed(self, text):
        before, tag, after = text.partition("</think>")
        parts = (OutputPart("reasoning", before), OutputPart("content", after))
        return parts if tag else (OutputPart("content", text),)


class PrefixCaller(PlainParser):
    """Takes a name for complete when it begins."""

    def feed(self, text):
        return [ToolCall(0, "function", "{}")] if "<function=" in text else super().feed(text)


class LossyTokenizer(ByteTokenizer):
    """Bytes that are no ASCII are lost."""

    def token_bytes(self, token_id):
        return b"?" if 127 < token_id < 256 else super().token_bytes(token_id)


def leaking(self, content):
    """Control tokens that content spells are taken for control tokens."""
    before, tag, after = content.partition("<|end|>")
    return [*before.encode(), *([CONTROLS[tag]] if tag else []), *after.encode()]


def dated(self, messages, **_):
    """The time is in every prompt."""
    now = {"role": "system", "content": f"It is {next(CLOCK)}."}
    return ToyFrontend().prepare([now, *messages])


def merged(self, messages, **_):
    """Longer conversations are spelled byte by byte, control tokens too; the text is the same."""
    prompt = ToyFrontend().prepare(messages)
    ids = prompt.token_ids if len(messages) < 2 else tuple(prompt.text.encode())
    return evolve(prompt, token_ids=ids)


LAB_MUTANTS = [
    ("rejected_drafts_leave_no_trace", recurring(without_rollback), "of 1 drafts"),
    ("rejected_drafts_leave_no_trace", recurring(replaying_one_too_few), "0 of 1 drafts"),
    ("rejected_drafts_leave_no_trace", recurring(replaying_one_too_many), "0 of 1 drafts"),
    ("speculation_changes_nothing", recurring(without_rollback), "drafts: token"),
    ("snapshots_are_reusable", recurring(replaying_one_too_few), "64 with 2 to replay"),
    ("prefill_in_any_chunks", building(CountingFromChunk), "steps of 1: logits of tokens 1:2"),
    ("prefill_in_any_chunks", recurring(forgetting_between_steps), "steps of 1: logits"),
    ("company_changes_nothing", recurring(feeling_company), "prefill of 8: logits of tokens 0:1"),
    ("requests_do_not_meet", recurring(feeling_company), "together: token"),
    ("free_memory_is_not_read", recurring(reading_padding), "poisoned memory"),
    ("predictions_come_in_any_chunks", predicting(forward=remembering), "steps of 1: predictions"),
    ("predictions_come_in_any_chunks", predicting(forward=misplacing), "steps of 1: predictions"),
    ("predictions_forget_rejected_drafts", predicting(forward=misplacing), "predictions after"),
    ("drawn_drafts_do_not_meet", predicting(forward=leaning), "drafting together: token"),
    ("predicted_drafts_change_nothing", recurring(without_rollback), "drafts: token"),
]
OTHER_MUTANTS = [
    ("parameters_are_used_once", building(WithoutHead, parameters=untied), "output_head"),
    ("parameters_are_used_once", pack_with(parameters=undeclared), "output_head"),
    ("missing_parameters_are_named", pack_with(build=lambda *_: None), "is missing, and yet"),
    ("components_can_be_left_out", building(Tuned), "logits of the text alone"),
    ("components_can_be_left_out", pack_with(states=greedy_states), "the text alone has"),
    ("parsers_ignore_cuts", speaking(parser=lambda self, prompt: HastyParser()), "cut by 1"),
    ("calls_are_whole", speaking(parser=lambda self, prompt: PrefixCaller()), "call 0 of"),
    ("text_round_trips", speaking(tokenizer=LossyTokenizer()), "by 1 tokens"),
    ("content_spells_no_control_tokens", speaking(encode_content=leaking), "256: 2"),
    ("prompts_are_stable", speaking(prepare=dated), "renderings differ"),
    ("turns_extend_their_prompt", speaking(prepare=merged), "the next turn begins with"),
    ("vocabulary_is_bounded", speaking(eos_token_ids=frozenset({999})), "999"),
    ("vocabulary_is_bounded", speaking(eos_token_ids=frozenset()), "end tokens"),
]


@pytest.mark.parametrize(("check", "pack", "words"), LAB_MUTANTS)
def test_lab_check_fails(failure_of, check, pack, words):
    assert words in failure_of(f"{check}[reference]", implementation=pack)


@pytest.mark.parametrize(("check", "pack", "words"), OTHER_MUTANTS)
def test_check_fails(failure_of, check, pack, words):
    assert words in failure_of(check, implementation=pack)


def test_a_config_that_the_artifact_cannot_carry(failure_of, toy):
    described = evolve(toy.model, components={"text": {**toy.model.config, "rope_theta": 5.0}})
    assert "rope_theta=5.0" in failure_of("stored_weights_come_back", model=described)


@pytest.mark.parametrize(
    ("claim", "check", "words"),
    [
        (lambda model: None, "claims_its_tiny_model", "does not claim its own"),
        (lambda model: Claim(next(CLOCK), "moody"), "claims_its_tiny_model", "asked twice"),
        (lambda model: Claim(1, "any") if "Toy" in str(model) else None,
         "refuses_other_architectures", "NotToyHybridForCausalLM"),
    ],
)
def test_claims(failure_of, claim, check, words):
    spec = SimpleNamespace(claim=SimpleNamespace(load=lambda: claim), embedded=())
    assert words in failure_of(check, spec=spec)


def test_a_claim_that_imports_torch(failure_of):
    def claim(model):
        import torch  # noqa: F401

    spec = SimpleNamespace(claim=SimpleNamespace(load=lambda: claim))
    assert "imports torch" in failure_of("claims_its_tiny_model", spec=spec)
