"""``ninfer bench engine agent``: how much of what an agent's requests repeat is read again."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from ninfer_bench.agent_report import make_report
from ninfer_bench.models import Subject, open_subject
from ninfer_bench.report import Report
from ninfer_bench.reuse import Known, Served, explains
from ninfer_bench.trace import Agent, Message, Turn, agents
from ninfer_core.api import PreparedPrompt, RequestError, ToolCall
from ninfer_core.engine.request import Event, Finished, GenerationRequest, TextDelta

MAX_CONTEXT = 32_768
POOL_TOKENS = 49_152
"""Of the default pool: less than all that the trace has, so that something must go."""


def run(arguments: Namespace) -> Report:
    """Play the trace and compare what was reused with what could have been."""
    with open_subject(arguments, max_context=MAX_CONTEXT, pool_tokens=POOL_TOKENS) as subject:
        tokenizer = subject.loaded.frontend.tokenizer
        trace = agents(tokenizer, arguments.turns, arguments.system_tokens)
        served = list(_play(subject, trace, arguments.nonce))
        subject.loaded.engine.audit()
        return make_report(arguments, subject, served)


def _play(subject: Subject, trace: Sequence[Any], nonce: bool) -> Iterator[Served]:
    """Round by round, the next requests of all agents at once."""
    known, number = Known(), 0
    waiting = sorted(trace, key=lambda each: each[0])
    running: list[tuple[Agent, list[Turn]]] = []
    while waiting or running:
        number += 1
        while waiting and waiting[0][0] <= number:
            agent: Agent = waiting.pop(0)[1]()
            running.append((agent, next(agent)))
        turns = [turn for _, batch in running for turn in batch]
        answers = iter(_serve(subject, turns, known, nonce))
        following = []
        for agent, batch in running:
            found = [next(answers) for _ in batch]
            yield from (each for _, each in found)
            try:
                following.append((agent, agent.send([message for message, _ in found])))
            except StopIteration:
                continue
        running = following


def _serve(
    subject: Subject, turns: Sequence[Turn], known: Known, nonce: bool
) -> list[tuple[Message, Served]]:
    """Serve requests at once: the messages that answer them, and what they reused."""
    engine, frontend = subject.loaded.engine, subject.loaded.frontend
    marks = [_nonce(turn, len(known.sequences)) if nonce else "" for turn in turns]
    prompts = [_prompt(subject, turn, mark) for turn, mark in zip(turns, marks, strict=True)]
    reusable = [known.reusable(prompt.token_ids) for prompt in prompts]
    sinks: list[list[Event]] = [[] for _ in turns]
    for turn, prompt, sink in zip(turns, prompts, sinks, strict=True):
        sampling = frontend.sampling_defaults(prompt)
        engine.submit(GenerationRequest(prompt, sampling, turn.max_tokens), sink.append)
    engine.run_until_idle()
    found = []
    for turn, prompt, most, mark, events in zip(
        turns, prompts, reusable, marks, sinks, strict=True
    ):
        end = events[-1]
        assert isinstance(end, Finished)
        if end.cause:
            raise end.cause
        known.add((*prompt.token_ids, *end.token_ids))
        is_explained = bool(mark) and explains(end.reuse, prompt, mark, frontend.tokenizer)
        found.append((_message(events), _served(turn, end, most, is_explained)))
    return found


def _served(turn: Turn, end: Finished, reusable: int, is_explained: bool) -> Served:
    reuse = end.reuse
    return Served(
        turn.label, end.usage.prompt_tokens, end.usage.output_tokens, reusable, reuse.num_tokens,
        reuse.kind, reuse.tier, reuse.diverged_at, reuse.known, reuse.new, is_explained,
        end.timings.prefill_s,
    )


def _nonce(turn: Turn, number: int) -> str:
    return sha256(f"{turn.label} {number}".encode()).hexdigest()[:10]


def _prompt(subject: Subject, turn: Turn, nonce: str) -> PreparedPrompt:
    """Render a request; for a model whose template takes no tools, they are text."""
    frontend, (system, *others) = subject.loaded.frontend, turn.messages
    first = f"x-request-id: {nonce}\n" if nonce else ""
    messages: list[dict[str, Any]] = [{**system, "content": first + system["content"]}]
    messages += map(dict, others)
    try:
        return frontend.prepare(messages, tools=turn.tools)
    except RequestError:
        if not turn.tools:
            raise
        messages[0]["content"] += "".join(f"\n{tool}" for tool in turn.tools)
        return frontend.prepare(messages)


def _message(events: Iterable[Event]) -> Message:
    """The message of an answer, as a client keeps it."""
    texts, calls = {"content": "", "reasoning": ""}, []
    for event in events:
        if isinstance(event, TextDelta):
            texts[event.channel] += event.text
        elif isinstance(event, ToolCall):
            calls.append({"function": {"name": event.name, "arguments": event.arguments}})
    reasoning = {"reasoning_content": texts["reasoning"]} if texts["reasoning"] else {}
    return {"role": "assistant", "content": texts["content"], **reasoning,
            **({"tool_calls": calls} if calls else {})}
