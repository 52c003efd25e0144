"""Decode and prefill speed beside llama.cpp: the same GGUF, the same threads, one run.

Every round starts a fresh process of each engine in turn, so that neither the other's threads nor a
drift of the machine favours one. A round prefills 512 tokens, then decodes 64 greedy tokens behind
them; the medians over the rounds and their ratio are printed.

    pip install llama-cpp-python      # builds for 20 minutes; another environment will do
    python hardware_profiles/cpu/benchmarks/against_llama_cpp.py --llama-python PATH/TO/python
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TEXT = (
    "The river runs through seven towns before it meets the sea, and each of them tells the story "
    "of the flood in its own way, with other names, other heroes and another count of the drowned. "
)
PROMPT_TOKENS, NEW_TOKENS, REPEATS = 512, 64, 3


def main() -> None:
    """Run the rounds, or, with ``--engine``, one engine in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-python", default=sys.executable, help="has llama_cpp installed")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--gguf", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(ENGINES[options.engine](options)))
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Alternate the engines and print medians and ratios."""
    from ninfer_core.plugin_host import find_embedded, load_plugins

    gguf = str(find_embedded(load_plugins().registry, "smollm2").locate.load()())
    pythons = {"ninfer": sys.executable, "llama.cpp": options.llama_python}
    rates: dict[str, list[list[float]]] = {name: [] for name in pythons}
    for _ in range(options.rounds):
        for engine, python in pythons.items():
            rates[engine].append(one_process(python, engine, options.threads, gguf))
    print(f"{options.threads} threads, median of {options.rounds} rounds, tok/s")
    for index, phase in enumerate(("prefill", "decode")):
        ours, theirs = ([rate[index] for rate in rates[name]] for name in pythons)
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        print(
            f"{phase:8} ninfer {statistics.median(ours):7.1f}   "
            f"llama.cpp {statistics.median(theirs):7.1f}   ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


def one_process(python: str, engine: str, threads: int, gguf: str) -> list[float]:
    """Rates of an engine in a process of its own, ``[prefill, decode]`` tok/s."""
    command = [python, __file__, "--engine", engine, "--threads", str(threads), "--gguf", gguf]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def run_ninfer(options: argparse.Namespace) -> list[float]:
    """The engine as the command uses it, sampling and detokenising included."""
    from ninfer_core.api import PreparedPrompt, SamplingParams
    from ninfer_core.cli.models import artifact_path
    from ninfer_core.config import LaunchConfig, resolve
    from ninfer_core.engine.load import load_engine
    from ninfer_core.engine.request import Finished, GenerationRequest
    from ninfer_core.plugin_host import load_plugins

    report = load_plugins()
    path = artifact_path("smollm2", report.registry, lambda *_: None)
    loaded = load_engine(resolve(LaunchConfig(model=str(path), threads=options.threads), report))
    ids = tuple(loaded.frontend.tokenizer.encode(TEXT * 20)[:PROMPT_TOKENS])
    request = GenerationRequest(
        PreparedPrompt(ids, ""), SamplingParams(), max_tokens=NEW_TOKENS + 1, ignore_eos=True
    )
    events: list[object] = []
    for _ in range(REPEATS):
        loaded.engine.submit(request, events.append)
        loaded.engine.run_until_idle()
    timings = [event.timings for event in events if isinstance(event, Finished)]
    return [
        max(each.prefill_tokens / each.prefill_s for each in timings),
        max(each.decode_tokens / each.decode_s for each in timings),
    ]


def run_llama(options: argparse.Namespace) -> list[float]:
    """llama.cpp through its Python binding: eval, greedy sample, detokenise."""
    from llama_cpp import Llama

    model = Llama(
        options.gguf, n_ctx=2048, n_batch=PROMPT_TOKENS, n_ubatch=PROMPT_TOKENS, verbose=False,
        n_threads=options.threads, n_threads_batch=options.threads,
    )
    ids = model.tokenize((TEXT * 20).encode(), add_bos=False)[:PROMPT_TOKENS]
    prefill, decode = [], []
    for _ in range(REPEATS):
        model.reset()
        start = time.perf_counter()
        model.eval(ids)
        token = model.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(NEW_TOKENS):
            model.eval([token])
            token = model.sample(temp=0.0)
            model.detokenize([token])
        prefill.append(PROMPT_TOKENS / (first - start))
        decode.append(NEW_TOKENS / (time.perf_counter() - first))
    return [max(prefill), max(decode)]


ENGINES = {"ninfer": run_ninfer, "llama.cpp": run_llama}

if __name__ == "__main__":
    main()
