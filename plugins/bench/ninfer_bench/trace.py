"""The requests of a coding agent: a main conversation with tools, side requests about it, and
sub-agents beside it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from attrs import frozen

from ninfer_bench.writing import Writer, size_of, tools
from ninfer_core.api import Tokenizer

Message = Mapping[str, Any]

SIDE_EVERY, GROWS_EVERY, ASKS_EVERY = 5, 10, 4
"""Turns from side request to side request, from one growth of the system prompt to the next, and
from one message of the user to the next; tool results are between."""
SUB_SHARE = 5
"""A sub-agent has one turn for so many of the main conversation."""
USUAL = 8000
"""Tokens of a system prompt, with which messages have the length that they usually have."""


@frozen
class Turn:
    """A request: what the client sends."""

    label: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    max_tokens: int


Agent = Generator[list[Turn], list[Message], None]
"""Yields requests that are made at once, and takes the answers to them."""


def agents(
    tokenizer: Tokenizer, turns: int, system_tokens: int
) -> list[tuple[int, Callable[[], Agent]]]:
    """The agents of a trace, each with the round in which it begins."""
    declared, scale = tools(tokenizer, system_tokens // 2), system_tokens / USUAL
    text = Writer(tokenizer, 2).text(max(16, system_tokens - size_of(declared, tokenizer)))
    sub = Writer(tokenizer, 3).text(system_tokens * 3 // 8)

    def sub_agent(number: int) -> Callable[[], Agent]:
        writer = Writer(tokenizer, 10 + number, scale)
        return lambda: _sub_agent(f"sub-agent {number}", writer, sub, tuple(declared), sub_turns)

    begin, sub_turns = max(2, turns // 4), max(2, turns // SUB_SHARE)
    return [
        (1, lambda: _main(Writer(tokenizer, 4, scale), text, tuple(declared), turns)),
        (begin, sub_agent(1)), (begin + 1, sub_agent(2)),
    ]


def _main(writer: Writer, system: str, declared: Sequence[Message], turns: int) -> Agent:
    history: list[Message] = []
    for turn in range(1, turns + 1):
        if turn % GROWS_EVERY == 0:
            system += "\nRemember:\n" + writer.between(240, 260)
        history.append(_next_message(writer, turn))
        whole = ({"role": "system", "content": system}, *history)
        batch = [Turn(f"turn {turn}", whole, tuple(declared), 48)]
        if turn % SIDE_EVERY == 0:
            batch.append(_side_request(turn, whole, tuple(declared)))
        history.append((yield batch)[0])


def _next_message(writer: Writer, turn: int) -> Message:
    if turn % ASKS_EVERY == 1:
        return {"role": "user", "content": writer.between(40, 160)}
    return {"role": "tool", "content": writer.between(80, 700)}


def _side_request(turn: int, whole: tuple[Message, ...], declared: tuple[Message, ...]) -> Turn:
    """In turn a title, which has a prompt of its own, and a summary of all there is."""
    if turn // SIDE_EVERY % 2:
        system = {"role": "system", "content": "Give the conversation a title of three words."}
        return Turn(f"title {turn}", (system, whole[1]), (), 16)
    ask = {"role": "user", "content": "Summarise what was done so far, for whoever goes on."}
    return Turn(f"summary {turn}", (*whole, ask), declared, 32)


def _sub_agent(
    name: str, writer: Writer, system: str, declared: tuple[Message, ...], turns: int
) -> Agent:
    history: list[Message] = [{"role": "system", "content": system}]
    for turn in range(1, turns + 1):
        role = "user" if turn == 1 else "tool"
        history.append({"role": role, "content": writer.between(80, 500)})
        history.append((yield [Turn(f"{name}, {turn}", tuple(history), declared, 48)])[0])
