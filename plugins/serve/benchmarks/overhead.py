"""What the server costs: the same engine driven in its own process, and through HTTP.

    python plugins/serve/benchmarks/overhead.py             # an engine of 2,000 tok/s, made up
    python plugins/serve/benchmarks/overhead.py --smollm2 --threads 1
    python plugins/serve/benchmarks/overhead.py --requests 10000     # memory, instead of speed

Engine, server and clients are processes of their own. The latency that is added to a token is
from the moment when the engine sends it to the moment when the client has read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paced import PROMPT, STREAMS

from ninfer_bench.stub import stub_engine
from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.cli.models import artifact_path
from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import Event, Finished, GenerationRequest, TextDelta
from ninfer_core.plugin_host import load_plugins
from ninfer_serve.engine_process import warm_up

Times = list[float]


def drive(engine: Any, output: int, prompts: list[list[int]]) -> list[Times]:
    """When each text came, in the engine's own process."""
    times: list[Times] = [[] for _ in prompts]
    done = threading.Semaphore(0)

    def sink_of(own: Times) -> Callable[[Event], None]:
        def sink(event: Event) -> None:
            if isinstance(event, TextDelta):
                own.append(time.monotonic())
            elif isinstance(event, Finished):
                done.release()

        return sink

    with EngineClient(engine) as client:
        for ids, own in zip(prompts, times, strict=True):
            prompt = PreparedPrompt(tuple(ids), "")
            client.submit_to(sink_of(own), GenerationRequest(
                prompt, SamplingParams(), output, ignore_eos=True))
        for _ in prompts:
            done.acquire()
    return times


async def stream(port: int, prompt: list[int], output: int) -> Times:
    """When each text came, through HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True,
                       "ignore_eos": True}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    times, before = Times(), b""
    try:
        while data := await reader.read(1 << 16):
            now = time.monotonic()
            *lines, before = (before + data).split(b"\n")
            times += [now] * sum(map(num_tokens, lines))
    finally:
        writer.close()
    return times


def num_tokens(line: bytes) -> int:
    """Of a chunk: the made-up model writes a letter each, and what comes together may be sent
    together."""
    text = line.partition(b'"text":"')[2].partition(b'"')[0]
    return len(text)


async def streams(port: int, prompts: list[list[int]], output: int) -> list[Times]:
    return await asyncio.gather(*(stream(port, prompt, output) for prompt in prompts))


def speed(times: list[Times]) -> float:
    """Tokens per second while all streams run."""
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    return sum(begin < at <= end for each in times for at in each) / (end - begin)


@contextmanager
def paced_server(step_s: float, output: int, times: str = "") -> Iterator[tuple[int, int, int]]:
    """Port of a server, its pid and its engine's, which at its end writes when it sent what."""
    environment = {**os.environ, "STEP_S": str(step_s), "OUTPUT": str(output), "TIMES": times}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("paced.py"))], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    try:
        port, engine = map(int, process.stdout.readline().split())
        yield port, process.pid, engine
    finally:
        process.stdin.close()
        process.wait(30)


@contextmanager
def smollm2_server(threads: int | None) -> Iterator[int]:
    """Port of `ninfer-serve`."""
    words = ["smollm2", "--port", "0", "--max-context", "1024", "--max-concurrency", str(STREAMS)]
    if threads is not None:
        words += ["--threads", str(threads)]
    process = subprocess.Popen([sys.executable, "-m", "ninfer_serve.cli", *words], text=True,
                               stderr=subprocess.PIPE)
    assert process.stderr
    try:
        line = next(line for line in process.stderr if "serving " in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(line.rsplit(":", 1)[1])
    finally:
        process.terminate()
        process.wait(30)


def added_latency(sent: list[tuple[int, float]], came: list[Times]) -> Times:
    """Of each token, in seconds. Clients do not know the engine's numbers: what began first is
    the same stream."""
    by_number: dict[int, Times] = {}
    for number, at in sent:
        by_number.setdefault(number, []).append(at)
    ours, theirs = (sorted(each) for each in (by_number.values(), came))
    return [
        late - early for own, other in zip(ours, theirs, strict=True)
        for early, late in zip(own, other, strict=True)
    ]


def compare_paced(step_s: float, output: int, rounds: int) -> dict[str, Any]:
    prompts = [[97 + row] * PROMPT for row in range(STREAMS)]
    inside, outside, cpu_inside, cpu_outside, latencies = (Times() for _ in range(5))
    for _ in range(rounds):
        engine, _ = stub_engine(STREAMS, 4 * PROMPT, output, step_s)
        begun = time.process_time()
        inside.append(speed(drive(engine, output, prompts)))
        cpu_inside.append((time.process_time() - begun) / output)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report")
            with paced_server(step_s, output, str(report)) as (port, _, _):
                came = asyncio.run(streams(port, prompts, output))
            outside.append(speed(came))
            engine_side = json.loads(report.read_text())
        cpu_outside.append(engine_side["cpu_s"] / output)
        latencies += added_latency(engine_side["sent"], came)
    latencies.sort()
    return compared(inside, outside) | {
        "engine's CPU us per step, in-process": 1e6 * statistics.median(cpu_inside),
        "engine's CPU us per step, HTTP": 1e6 * statistics.median(cpu_outside),
        "added ms p50": 1e3 * statistics.median(latencies),
        "added ms p99": 1e3 * latencies[int(0.99 * len(latencies))],
        "added ms max": 1e3 * latencies[-1],
    }


def compare_smollm2(output: int, rounds: int, threads: int | None) -> dict[str, Any]:
    report = load_plugins()
    path = artifact_path("smollm2", report.registry, lambda *_: None)
    config = LaunchConfig(model=str(path), max_context=1024, max_concurrency=STREAMS,
                          threads=threads)
    prompts = [[1000 + 7 * row + place for place in range(PROMPT)] for row in range(STREAMS)]
    inside, outside = Times(), Times()
    for _ in range(rounds):
        engine = load_engine(resolve(config, report)).engine
        warm_up(engine)
        begin = time.monotonic()
        drive(engine, output, prompts)
        inside.append(output * STREAMS / (time.monotonic() - begin))
        with smollm2_server(threads) as port:
            begin = time.monotonic()
            asyncio.run(streams(port, prompts, output))
            outside.append(output * STREAMS / (time.monotonic() - begin))
    return compared(inside, outside)


def compared(inside: Times, outside: Times) -> dict[str, Any]:
    ratio = statistics.median(outside) / statistics.median(inside)
    return {"in-process tok/s": inside, "HTTP tok/s": outside, "HTTP / in-process": ratio}


def memory(requests: int) -> dict[str, Any]:
    """Resident megabytes of server and engine over many requests, of which one in ten is given
    up."""

    async def one(port: int, number: int) -> None:
        if number % 10 == 3:
            try:
                async with asyncio.timeout(0.005):
                    await stream(port, [97] * PROMPT, 100)
            except TimeoutError:
                return
        ids = [97 + number % 20, *[98 + number % 7] * (PROMPT - 1)]
        await stream(port, ids, 1 + number % 8)

    async def all_of(port: int, *pids: int) -> list[list[float]]:
        marks, due = list[list[float]](), 0
        for begin in range(0, requests, STREAMS):
            await asyncio.gather(*(one(port, begin + each) for each in range(STREAMS)))
            if begin >= due:
                due += requests // 20
                marks.append([begin, *map(resident_mb, pids)])
        return marks

    with paced_server(0, 100) as (port, *pids):
        marks = asyncio.run(all_of(port, *pids))
    names = ("requests", "server MB", "engine MB")
    return {name: [mark[index] for mark in marks] for index, name in enumerate(names)}


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="the real model instead")
    parser.add_argument("--threads", type=int, help="of the real model's engine")
    parser.add_argument("--step-ms", type=float, default=4.0, help="time of a step")
    parser.add_argument("--output", type=int, help="tokens of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, help="measure memory over so many")
    given = parser.parse_args()
    if given.requests:
        found = memory(given.requests)
    elif given.smollm2:
        found = compare_smollm2(given.output or 150, given.rounds, given.threads)
    else:
        found = compare_paced(given.step_ms / 1e3, given.output or 1000, given.rounds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
