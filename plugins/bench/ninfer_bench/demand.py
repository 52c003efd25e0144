"""What clients ask for: requests of several kinds, some of which begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from attrs import evolve, frozen

from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.engine.scheduler import num_pages

PER_CONVERSATION = 4
"""Kinds that are turns of one conversation: each begins with the prompt before it."""
LONGEST_OUTPUT = 96
CANCELS, DEADLINES = 0.1, 0.1
"""Shares of requests that are cancelled, and that have a deadline."""
LONGEST_DEADLINE_S = 2.0


@frozen
class Kind:
    """A request, and the tokens that answer it when it is alone; None if they are not compared."""

    request: GenerationRequest
    alone: tuple[int, ...] | None = None


@frozen
class Choice:
    """What a client does next: a request of a kind, and the event at which it is cancelled, if it
    is."""

    kind: Kind
    request: GenerationRequest
    cancel_after: int | None


def requests_of(seed: int, count: int, longest: int, vocab_size: int) -> list[GenerationRequest]:
    """Different requests, half of them greedy; prompts of up to ``longest`` tokens."""
    random, made = Random(seed), list[GenerationRequest]()
    prompt: tuple[int, ...] = ()
    for index in range(count):
        if index % PER_CONVERSATION == 0:
            prompt = ()
        more = random.randint(16, max(17, longest // PER_CONVERSATION))
        prompt = (*prompt, *(random.randrange(vocab_size) for _ in range(more)))[:longest]
        temperature = random.choice((0.0, 0.8))
        made.append(GenerationRequest(
            PreparedPrompt(prompt, ""), SamplingParams(temperature, seed=index),
            random.randint(8, LONGEST_OUTPUT), ignore_eos=True, raw=True,
        ))
    return made


def pages_of(request: GenerationRequest) -> int:
    """That a request takes in the end."""
    return num_pages(len(request.prompt.token_ids) + request.max_tokens)


def half_of_what_is_asked(requests: Sequence[GenerationRequest], clients: int) -> int:
    """Pages of a pool that holds half of what so many clients ask for at once on average, and the
    largest request."""
    asked = clients * sum(map(pages_of, requests)) / len(requests)
    return max(round(asked / 2), *map(pages_of, requests))


def choose(random: Random, kinds: Sequence[Kind]) -> Choice:
    """The next thing that a client does."""
    kind, cancel_after = random.choice(kinds), None
    request = kind.request
    if random.random() < DEADLINES:
        request = evolve(request, deadline_s=random.uniform(0.0, LONGEST_DEADLINE_S))
    if random.random() < CANCELS:
        cancel_after = random.randint(0, request.max_tokens)
    return Choice(kind, request, cancel_after)
