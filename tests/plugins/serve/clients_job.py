"""Eight clients of the openai SDK at once, half of which leave in the middle, on SmolLM2: no part
of the default tests, because it takes its time.

    SECONDS=120 pytest -s tests/plugins/serve/clients_job.py
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from attrs import field, mutable
from openai import AsyncOpenAI

SECONDS, CLIENTS = float(os.environ.get("SECONDS", "120")), 8
SUBJECTS = ("the sea", "bread", "a fox", "winter", "clocks", "rain on a roof", "the moon", "tea")
INTRODUCTION = "You answer in plain words. Nobody wants lists, and nobody wants apologies. " * 6
MOST_GROWTH = 16 << 20
"""Bytes that a process may gain in the second half of the time."""


@mutable
class Load:
    """What eight clients have seen. :ivar memory: time and bytes of server and engine."""

    outcomes: Counter[str] = field(factory=Counter)
    chunks: int = 0
    memory: list[tuple[float, int, int]] = field(factory=list)


@pytest.fixture
def url():
    words = ["--port", "0", "--max-concurrency", "8", "--max-context", "512"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ninfer_serve.cli", *words], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "serving " in line:
            break
    yield line.split()[-1], process.pid
    process.terminate()
    rest = process.stderr.read()
    assert process.wait(30) == 0, rest
    assert "ERROR" not in rest and "WARNING" not in rest, rest


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ask(client, rng):
    """One request of any dialect: a stream, to iterate and to close."""
    text = f"Say something about {rng.choice(SUBJECTS)} and the number {rng.randrange(50)}."
    limits = {"temperature": rng.choice((0.0, 1.0)), "extra_body": {"seed": rng.randrange(1 << 32)}}
    kind, most = rng.choice(("chat", "completion", "response")), rng.randrange(1, 64)
    if kind == "completion":
        return await client.completions.create(
            model="smollm2", prompt=text, max_tokens=most, stream=True, **limits)
    messages = [{"role": "system", "content": INTRODUCTION}, {"role": "user", "content": text}]
    if kind == "response":
        return await client.responses.create(
            model="smollm2", input=messages, max_output_tokens=max(most, 16), stream=True,
            store=False, **limits)
    return await client.chat.completions.create(
        model="smollm2", messages=messages, max_tokens=most, stream=True, **limits)


async def visit(url, seed, end, load):
    rng = random.Random(seed)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        while time.monotonic() < end:
            leaves_after = rng.randrange(1, 40) if rng.random() < 0.5 else None
            stream, seen = await ask(client, rng), 0
            async with stream:
                async for _ in stream:
                    load.chunks, seen = load.chunks + 1, seen + 1
                    if seen == leaves_after:
                        break
            load.outcomes["left" if seen == leaves_after else "whole"] += 1


async def watch(pids, end, load):
    while time.monotonic() < end:
        load.memory.append((time.monotonic(), *map(resident, pids)))
        await asyncio.sleep(1)


async def run(url, pids):
    end, load = time.monotonic() + SECONDS, Load()
    await asyncio.gather(
        watch(pids, end, load), *(visit(url, seed, end, load) for seed in range(CLIENTS)))
    return load


def greedy(client):
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "temperature": 0,
            "max_tokens": 16, "cache_prompt": False}
    return client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]


def idle(client):
    """The engine's status when nothing runs any more."""
    for _ in range(100):
        status = client.get("/v1/status").json()
        engine = status["engine"]
        if not (status["pending"] or engine["running"] or engine["waiting"] or engine["paused"]):
            return status
        time.sleep(0.1)
    raise AssertionError(status)


def test_eight_clients_come_and_go(url):
    url, pid = url
    [engine] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        before = greedy(client)
        load = asyncio.run(run(url, (pid, int(engine))))
        status = idle(client)
        assert greedy(client) == before
    assert status["restarts"] == 0 and status["engine"]["sequence_pages"] == 0
    assert load.outcomes["left"] and load.outcomes["whole"]
    middle = load.memory[len(load.memory) // 2]
    growth = [last - half for last, half in zip(load.memory[-1][1:], middle[1:], strict=True)]
    print({**load.outcomes, "chunks": load.chunks, "tokens": status["engine"]["tokens"],
           "MiB at half time": [each >> 20 for each in middle[1:]],
           "MiB gained since": [round(each / 2**20, 2) for each in growth]})
    assert max(growth) < MOST_GROWTH
