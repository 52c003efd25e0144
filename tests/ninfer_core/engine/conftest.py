"""A model whose every token depends on all the state that an engine can get wrong.

`HashModel` keeps a sequence's history twice: token by token in a paged plane, and as a running hash
in a state slot with a record of uncertain rows. Its logits are a function of both, read back from
memory, so that a wrong page, slot, position, replay or rollback changes what comes out.

Its predictor is as good as the model on what it is given, and says so when that cannot be: it keeps
the tokens it has read in a paged plane of its own, and compares them with the hidden states.
"""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve

from ninfer_core.api import (
    Advance,
    Draft,
    DraftRequest,
    KVCodecSpec,
    PagedStateSpec,
    PreparedPrompt,
    ReasoningTokens,
    SamplingParams,
    SlotStateSpec,
    SpeculatorContext,
    StatePlane,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.rows import SampleRow, TokenHistory
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.state.prefix_cache import PrefixCache
from ninfer_core.state.store import StateStore
from ninfer_core.text.parsers import PlainParser

VOCAB, EOS, PRIME = 48, 0, 8191
STATES = (
    PagedStateSpec("trail", 1, (StatePlane("token", (1,)),), dtype="int64"),
    SlotStateSpec("chain", 1, (1,), (1,), dtype="int64"),
    PagedStateSpec("guesses", 1, (StatePlane("token", (1,)),), dtype="int64"),
)
POWERS = np.array([pow(7, i, PRIME) for i in range(4096)])
TABLE = torch.randn((PRIME, VOCAB), generator=torch.Generator().manual_seed(5))
TABLE[:, EOS] -= 1.5  # outputs of the tests should seldom end by chance


def chain(state: int, token: int) -> int:
    """The running hash after one more token; depends on the order of tokens."""
    return (state * 31 + token + 1) % PRIME


def digest(history: np.ndarray, first: int = 0) -> int:
    """Of tokens at positions from ``first`` on, as read back from pages."""
    return int((history * POWERS[first : first + len(history)]).sum())


def logits_of(state: int, trail: int) -> torch.Tensor:
    """fp32 ``[VOCAB]`` from the running hash and the digest of all tokens."""
    return TABLE[(state ^ trail) % PRIME]


class HashModel:
    """See the module; ``before`` is called with every batch and may raise or spoil logits."""

    def __init__(self, store: StateStore) -> None:
        self.trail = store.view("trail", 0).planes["token"]["values"].numpy()
        slots = store.view("chain", 0)
        self.committed, self.record = slots.committed.numpy(), slots.record.numpy()
        self.before: Callable[[Any], None] = lambda batch: None
        self.after: Callable[[Any, torch.Tensor], None] = lambda batch, logits: None
        self.steps: list[tuple[int, int]] = []
        self.predictor = HashPredictor(store)
        self._hidden = torch.zeros(1024, 2, dtype=torch.float64)

    def forward(self, batch: Any) -> torch.Tensor:
        self.steps.append((batch.num_rows, batch.num_tokens))
        self.before(batch)
        rows = [row for index in range(batch.num_rows) for row in self._row(batch, index)]
        logits = torch.stack([logits_of(*rows[i]) for i in batch.logit_rows[: batch.num_logits]])
        self._hidden.fill_(-1)[: len(rows)] = torch.tensor(rows)
        self.after(batch, logits)
        return logits

    def hidden(self, num_tokens: int) -> torch.Tensor:
        """Running hash and digest ``[num_tokens, 2]``, exact."""
        return self._hidden[:num_tokens]

    def _row(self, batch: Any, index: int) -> list[tuple[int, int]]:
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
            rows.append((state, digest(read(self.trail, table, position))))
        if batch.certain[index]:
            self.committed[slot, 0] = state
        return rows


def read(plane: np.ndarray, table: np.ndarray, position: int) -> np.ndarray:
    """What a paged plane has of a sequence, up to a position."""
    return plane[table[: position // 64 + 1]].reshape(-1)[: position + 1]


class HashPredictor:
    """See the module; ``errs`` says at which positions it predicts a neighbour of the right token.

    :ivar faults: positions at which hidden state and own state contradict each other.
    """

    def __init__(self, store: StateStore) -> None:
        self.token_ids: torch.Tensor | None = None
        self.plane = store.view("guesses", 0).planes["token"]["values"].numpy()
        self.errs: Callable[[int], bool] = lambda position: False
        self.before: Callable[[Any], None] = lambda batch: None
        self.faults: list[int] = []
        self._logits, self._own = torch.zeros(64, VOCAB), torch.zeros(64, 2, dtype=torch.float64)

    def forward(self, batch: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.before(batch)
        assert len(hidden) == batch.num_tokens
        rows = [self._read(batch, place, *map(int, hidden[place]))
                for place in range(batch.num_tokens)]
        count = batch.num_logits
        for into, place in enumerate(batch.logit_rows[:count].tolist()):
            wrong = int(self.errs(int(batch.positions[place]) + 2))
            self._logits[into] = logits_of(*rows[place]).roll(wrong)
            self._own[into] = torch.tensor(rows[place])
        ids = slice(None) if self.token_ids is None else self.token_ids.clamp(max=VOCAB - 1)
        return self._logits[:count, ids], self._own[:count]

    def _read(self, batch: Any, place: int, state: int, trail: int) -> tuple[int, int]:
        token, position = int(batch.token_ids[place]), int(batch.positions[place])
        table = batch.page_table[int(batch.token_row[place])].numpy()
        page = table[position // 64]
        assert page > 0
        self.plane[page, position % 64, 0] = token
        state, trail = chain(state, token), trail + token * int(POWERS[position + 1])
        first = trail - digest(read(self.plane, table, position), 1)  # the first token itself
        if not 0 <= first < VOCAB:
            self.faults.append(position)
        return state, trail


def expected_tokens(request: GenerationRequest, count: int) -> list[int]:
    """What the model says, without an engine, pages or slots."""
    tokens, params = list(request.prompt.token_ids), request.sampling
    history, state = TokenHistory(VOCAB, tokens), 0
    for token in tokens:
        state = chain(state, token)
    for _ in range(count):
        logits = logits_of(state, digest(np.array(tokens))).unsqueeze(0)
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
    """The letter A opens reasoning, B closes it, CBD is what ends it by force."""

    eos_token_ids = frozenset({EOS})
    reasoning_tokens = ReasoningTokens(opening=1, closing=2, forced=(3, 2, 4))

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
        self.known: dict[int, int] = {}  # request -> tokens whose state is committed
        self.outcomes: list[tuple[int, int]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(tuple(self._draft(request))) for request in requests]

    def _draft(self, request: DraftRequest) -> list[int]:
        assert 0 < request.limit <= self.max_drafts
        assert self.known[request.request_id] == len(request.tokens) - 1
        number = max(request.limit - self.shorter[self.calls % len(self.shorter)], 0)
        self.calls += 1
        prompt = PreparedPrompt(tuple(request.tokens), "")
        drafts = expected_tokens(GenerationRequest(prompt, self.params, 1), number)
        for i in range(number):
            drafts[i] = (drafts[i] + self.wrong[self.drafts % len(self.wrong)]) % VOCAB
            self.drafts += 1
        return drafts

    def advance(self, steps: Sequence[Advance]) -> None:
        for step in steps:
            assert step.begin < step.end < len(step.tokens)
            assert not step.decoding or step.end == len(step.tokens) - 1
            self.known[step.request_id] = step.end
            if step.drafted:
                assert step.end - step.begin == 1 + step.accepted
                self.outcomes.append((step.drafted, step.accepted))

    def release(self, request_id: int) -> None:
        del self.known[request_id]


def build(
    *, max_sequences: int = 8, max_context: int = 512, num_pages: int = 64, chunk: int = 64,
    max_queue: int = 64, speculator: Any = None, frontend: Any = None, drafts: int = 3,
    cache: bool = True, host_pages: int = 0, anchor: int = 4096, queue_timeout_s: Any = None,
    **options: Any,
) -> SimpleNamespace:
    """An engine over a fresh `HashModel`, with its parts; a speculator may be a class of the core,
    which is made for up to ``drafts`` drafts."""
    made = not isinstance(speculator, type)
    store = StateStore(
        STATES, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=num_pages,
        max_sequences=max_sequences, max_context=max_context,
        max_verify_rows=1 + (speculator.max_drafts if made and speculator else drafts),
    )
    limits = Limits(max_context, max_sequences, max_queue, chunk, queue_timeout_s, anchor)
    host = store.host_memory(host_pages) if host_pages else None
    model = HashModel(store)
    if not made:
        speculator = speculator(SpeculatorContext(
            draft_tokens=drafts, vocab_size=VOCAB, model=model, max_sequences=max_sequences,
            max_tokens=max(chunk, max_sequences * (1 + drafts)), max_context=max_context,
            device="cpu",
        ))
    engine = Engine(
        model, frontend or LetterFrontend(), store, limits, speculator=speculator,
        cache=PrefixCache(store, host=host) if cache else None, **options
    )
    return SimpleNamespace(
        engine=engine, model=model, store=store, limits=limits, speculator=speculator
    )


def serve(parts: SimpleNamespace, *requests: GenerationRequest) -> list[list[Any]]:
    """Submit, run to the end, audit; the events of each request."""
    events: list[list[Any]] = [[] for _ in requests]
    for request, sink in zip(requests, events, strict=True):
        parts.engine.submit(request, sink.append)
    parts.engine.run_until_idle()
    parts.engine.audit()
    assert parts.model.predictor.faults == []
    return events


def ask(
    length: int = 5, *, first: int = 1, max_tokens: int = 8, **fields: Any
) -> GenerationRequest:
    """A request with a prompt of this many tokens; prompts differ by ``first``."""
    ids = tuple((first * 17 + i * i) % (VOCAB - 1) + 1 for i in range(length))
    request = GenerationRequest(PreparedPrompt(ids, ""), SamplingParams(), max_tokens)
    return evolve(request, **fields)


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(LetterTokenizer().token_bytes(token) for token in tokens).decode()


@pytest.fixture
def prefer() -> Iterator[Callable[..., None]]:
    """``(*tokens)``: from now on model and predictor like these best, in this order."""
    before = TABLE.clone()

    def prefer(*tokens: int) -> None:
        for rank, token in enumerate(reversed(tokens), 1):
            TABLE[:, token] = 100.0 * rank

    yield prefer
    TABLE.copy_(before)


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """Everything above, for test modules."""
    return SimpleNamespace(
        build=build, serve=serve, ask=ask, expected=expected_tokens, text=text_of, Oracle=Oracle,
        EOS=EOS, VOCAB=VOCAB, LetterFrontend=LetterFrontend, HashModel=HashModel, STATES=STATES,
    )
