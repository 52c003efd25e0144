"""``ninfer``: answer one prompt."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from contextlib import redirect_stdout

from attrs import evolve, fields_dict

from ninfer_core.api import ConfigError, Frontend, Grammar, PromptOptions, SamplingParams, ToolCall
from ninfer_core.cli.console import Console
from ninfer_core.cli.exits import INTERRUPTED
from ninfer_core.cli.grammar import read_grammar
from ninfer_core.cli.launch import prepare
from ninfer_core.cli.messages import Objects, read_conversation
from ninfer_core.cli.report import report
from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.engine.client import EngineClient, Generation
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import Finished, GenerationRequest, TextDelta
from ninfer_core.text.thinking import wanted_thinking


def run(arguments: Namespace) -> int:
    """Load the model, stream the answer, report."""
    start = time.perf_counter()
    conversation, grammar = _conversation(arguments), read_grammar(arguments)
    with Console(arguments.log_level) as console:
        with redirect_stdout(sys.stderr):  # a plugin that prints must not spoil the answer
            config, plugins = prepare(arguments, console.progress)
            plan = resolve(_for_one_request(config), plugins)
            loaded = load_engine(plan, console.progress)
        request = _request(arguments, loaded.frontend, *conversation, grammar)
        load_s = time.perf_counter() - start
        console.progress(f"reading {len(request.prompt.token_ids)} tokens", 0, 0)
        with EngineClient(loaded.engine) as client:
            finished = _stream(client.submit(request), console)
        if arguments.print_token_ids:
            print("generated ids:", *finished.token_ids, file=sys.stderr)
        for line in report(plan, loaded, finished, load_s):
            console.note(line)
    if finished.cause is not None:
        raise finished.cause
    return INTERRUPTED if finished.reason == "cancelled" else 0


def _for_one_request(config: LaunchConfig) -> LaunchConfig:
    """Nobody comes later for whom a state would be kept, unless it is kept on disk."""
    if config.disk_cache:
        return config
    return evolve(config, prefix_cache=False, host_capacity=None)


def _conversation(arguments: Namespace) -> tuple[Objects, Objects]:
    if "messages" in arguments:
        return read_conversation(arguments.messages)
    return [{"role": "user", "content": arguments.prompt}], []


def _request(
    arguments: Namespace, frontend: Frontend, messages: Objects, tools: Objects,
    grammar: Grammar | None,
) -> GenerationRequest:
    known = fields_dict(SamplingParams)
    given = {name: value for name, value in vars(arguments).items() if name in known}
    if arguments.greedy:
        given["temperature"] = 0.0
    options = PromptOptions(thinking=arguments.thinking, effort=arguments.reasoning_effort)
    if arguments.thinking_budget is not None and wanted_thinking(options) is False:
        raise ConfigError("--thinking-budget is of no use", why="reasoning is turned off",
                          fix=f"leave it out, or --reasoning-effort {options.effort}")
    prompt = frontend.prepare(messages, tools=tools, options=options)
    return GenerationRequest(
        prompt=prompt, sampling=evolve(frontend.sampling_defaults(prompt), **given),
        max_tokens=arguments.max_tokens, stop=arguments.stop,
        stop_token_ids=arguments.stop_token_id, raw=arguments.raw_output,
        thinking_budget=arguments.thinking_budget, grammar=grammar,
    )


def _stream(generation: Generation, console: Console) -> Finished:
    """Print the answer as it comes; Ctrl-C cancels the rest of it."""
    try:
        return _print(generation, console)
    except KeyboardInterrupt:
        generation.cancel()
        return _print(generation, console)


def _print(generation: Generation, console: Console) -> Finished:
    events = iter(generation)
    while not isinstance(event := next(events), Finished):
        if isinstance(event, ToolCall):
            console.call(event)
        elif isinstance(event, TextDelta):
            console.stream(event.channel, event.text)
    console.end_answer()
    return event
