"""A model whose every token depends on all the state that an engine can get wrong.

`HashModel` keeps a sequence's history twice: token by token in a paged plane, and as a running hash
in a state slot with a record of uncertain rows. Its logits are a function of both, read back from
memory, so that a wrong page, slot, position, replay or rollback changes what comes out.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve

from ninfer_core.api import (
    KVCodecSpec,
    PagedStateSpec,
    PreparedPrompt,
    SamplingParams,
    SlotStateSpec,
    StatePlane,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.state.store import StateStore
from ninfer_core.text.parsers import PlainParser

VOCAB, EOS, PRIME = 48, 0, 8191
STATES = (
    PagedStateSpec("trail", 1, (StatePlane("token", (1,)),), dtype="int64"),
    SlotStateSpec("chain", 1, (1,), (1,), dtype="int64"),
)
POWERS = np.array([pow(7, i, PRIME) for i in range(4096)])
TABLE = torch.randn((PRIME, VOCAB), generator=torch.Generator().manual_seed(5))
TABLE[:, EOS] -= 1.5  # outputs of the tests should seldom end by chance


def chain(state: int, token: int) -> int:
    """The running hash after one more token; depends on the order of tokens."""
    return (state * 31 + token + 1) % PRIME


def logits_of(state: int, history: np.ndarray) -> torch.Tensor:
    """fp32 ``[VOCAB]`` from the running hash and the tokens read back from pages."""
    return TABLE[(state ^ int((history * POWERS[: len(history)]).sum())) % PRIME]


class HashModel:
    """See the module; ``before`` is called with every batch and may raise or spoil logits."""

    def __init__(self, store: StateStore) -> None:
        self.trail = store.view("trail", 0).planes["token"]["values"].numpy()
        slots = store.view("chain", 0)
        self.committed, self.record = slots.committed.numpy(), slots.record.numpy()
        self.before: Callable[[Any], None] = lambda batch: None
        self.after: Callable[[Any, torch.Tensor], None] = lambda batch, logits: None
        self.steps: list[tuple[int, int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.steps.append((batch.num_rows, batch.num_tokens))
        self.before(batch)
        rows = [row for index in range(batch.num_rows) for row in self._row(batch, index)]
        logits = torch.stack(rows)[batch.logit_rows[: batch.num_logits]]
        self.after(batch, logits)
        return logits

    def _row(self, batch: Any, index: int) -> list[torch.Tensor]:
        slot, table = int(batch.slots[index]), batch.page_table[index].numpy()
        assert slot > 0
        for row in range(int(batch.replay[index])):
            self.committed[slot, 0] = chain(self.committed[slot, 0], self.record[slot, row, 0])
        state, rows = int(self.committed[slot, 0]), []
        first, last = int(batch.row_start[index]), int(batch.row_start[index + 1])
        for row, place in enumerate(range(first, last)):
            token, position = int(batch.token_ids[place]), int(batch.positions[place])
            assert position == int(batch.context_len[index]) + row
            assert int(batch.token_row[place]) == index
            page = table[position // 64]
            assert page > 0
            self.trail[page, position % 64, 0] = token
            state = chain(state, token)
            if not batch.certain[index]:
                self.record[slot, row, 0] = token
            history = self.trail[table[: position // 64 + 1]].reshape(-1)[: position + 1]
            rows.append(logits_of(state, history))
        if batch.certain[index]:
            self.committed[slot, 0] = state
        return rows


def expected_tokens(request: GenerationRequest, count: int) -> list[int]:
    """What the model says, without an engine, pages or slots."""
    tokens, params = list(request.prompt.token_ids), request.sampling
    history, state = TokenHistory(VOCAB, tokens), 0
    for token in tokens:
        state = chain(state, token)
    for _ in range(count):
        logits = logits_of(state, np.array(tokens)).unsqueeze(0)
        row = SampleRow(params, len(tokens), history=history)
        token = int(Sampler().sample(logits, [row]))
        tokens.append(token)
        history.append(token)
        state = chain(state, token)
    return tokens[len(request.prompt.token_ids) :]


class LetterTokenizer:
    """Token n is a letter; token 0 ends the output and would show as ``$``."""

    vocab_size = VOCAB

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [ord(char) - 64 for char in text]

    def token_bytes(self, token_id: int) -> bytes:
        return b"$" if token_id == EOS else chr(64 + token_id).encode()


class LetterFrontend:
    tokenizer = LetterTokenizer()
    eos_token_ids = frozenset({EOS})
    sampling_defaults = SamplingParams()

    def parser(self, prompt: PreparedPrompt) -> PlainParser:
        return PlainParser()


class Oracle:
    """Drafts what the model will say, except at the draft positions where it is told to be wrong.

    ``wrong`` is read cyclically over all drafts; ``shorter`` says how many fewer than allowed."""

    def __init__(
        self, max_drafts: int, wrong: Sequence[bool] = (False,), shorter: Sequence[int] = (0,),
        params: SamplingParams | None = None,
    ) -> None:
        self.max_drafts, self.params = max_drafts, params or SamplingParams()
        self.wrong, self.shorter, self.calls, self.drafts = wrong, shorter, 0, 0
        self.known: set[int] = set()
        self.outcomes: list[tuple[int, int]] = []

    def propose(self, request_id: int, tokens: Sequence[int], limit: int) -> list[int]:
        assert 0 < limit <= self.max_drafts
        self.known.add(request_id)
        number = max(limit - self.shorter[self.calls % len(self.shorter)], 0)
        self.calls += 1
        prompt = PreparedPrompt(tuple(tokens), "")
        drafts = expected_tokens(GenerationRequest(prompt, self.params, 1), number)
        for i in range(number):
            drafts[i] = (drafts[i] + self.wrong[self.drafts % len(self.wrong)]) % VOCAB
            self.drafts += 1
        return drafts

    def observe(self, request_id: int, drafted: Sequence[int], accepted: int) -> None:
        assert request_id in self.known
        self.outcomes.append((len(drafted), accepted))

    def release(self, request_id: int) -> None:
        self.known.remove(request_id)


def build(
    *, max_sequences: int = 8, max_context: int = 512, num_pages: int = 64, chunk: int = 64,
    max_queue: int = 64, speculator: Any = None, frontend: Any = None, **options: Any,
) -> SimpleNamespace:
    """An engine over a fresh `HashModel`, with its parts."""
    store = StateStore(
        STATES, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=num_pages,
        max_sequences=max_sequences, max_context=max_context,
        max_verify_rows=1 + (speculator.max_drafts if speculator else 0),
    )
    limits = Limits(max_context, max_sequences, max_queue, chunk)
    model = HashModel(store)
    engine = Engine(
        model, frontend or LetterFrontend(), store, limits, speculator=speculator, **options
    )
    return SimpleNamespace(engine=engine, model=model, store=store, limits=limits)


def ask(
    length: int = 5, *, first: int = 1, max_tokens: int = 8, **fields: Any
) -> GenerationRequest:
    """A request with a prompt of this many tokens; prompts differ by ``first``."""
    ids = tuple((first * 17 + i * i) % (VOCAB - 1) + 1 for i in range(length))
    request = GenerationRequest(PreparedPrompt(ids, ""), SamplingParams(), max_tokens)
    return evolve(request, **fields)


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(LetterTokenizer().token_bytes(token) for token in tokens).decode()


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Everything above, for test modules."""
    return SimpleNamespace(
        build=build, ask=ask, expected=expected_tokens, text=text_of, Oracle=Oracle,
        EOS=EOS, VOCAB=VOCAB, LetterFrontend=LetterFrontend, HashModel=HashModel, STATES=STATES,
    )
