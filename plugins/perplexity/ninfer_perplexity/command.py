"""``ninfer perplexity``: the perplexity of a model on texts."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import redirect_stdout

import torch
from attrs import evolve

from ninfer_core.api import ConfigError
from ninfer_core.cli.console import Console, table
from ninfer_core.cli.launch import prepare
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.engine.load import load_model
from ninfer_perplexity import report
from ninfer_perplexity.corpus import Corpus, read_corpus, read_text
from ninfer_perplexity.facts import settings
from ninfer_perplexity.outputs import Outputs
from ninfer_perplexity.reference import open_reference, require_same
from ninfer_perplexity.results import rows
from ninfer_perplexity.run import Run, measure
from ninfer_perplexity.scorer import STEP_LOGITS
from ninfer_perplexity.tokens import tokenize


def run(arguments: Namespace) -> int:
    """Measure, print the table, write the report. What can be refused is refused before a model is
    loaded."""
    _check(arguments)
    corpus, outputs = _corpus(arguments), Outputs(arguments.output, arguments.save_logits)
    reference = open_reference(arguments.reference) if arguments.reference else None
    with outputs.prepared(), Console(arguments.log_level) as console:
        with redirect_stdout(sys.stderr):  # a plugin that prints must not spoil the table
            plan = _plan(arguments, console)
            loaded = load_model(plan, console.progress)
        tokenizer, vocab_size = loaded.frontend.tokenizer, loaded.vocab_size
        texts = [tokenize(text, tokenizer, vocab_size) for text in corpus.texts]
        how = settings(plan, arguments.stride, vocab_size)
        if reference:
            require_same(reference, how, texts)
        with outputs.open(texts, vocab_size, console.note) as files, torch.inference_mode():
            work = Run(plan, loaded, corpus.name, texts, how, reference, files.log_probs)
            made = measure(work, console)
            if files.report:
                files.report.write(report.dump(made))
    print(table(*rows(made)))
    return 0


def _check(arguments: Namespace) -> None:
    """Refuse options that contradict each other."""
    if arguments.stride >= arguments.context:
        why = (f"a stride of {arguments.stride} leaves a window of {arguments.context} tokens "
               "nothing to predict its first target from")
        raise ConfigError("--stride must be below --context", why=why)
    if arguments.quick and "corpus" not in arguments:
        raise ConfigError("--quick is for a --corpus", why="one --text has nothing to choose from")
    if arguments.save_logits and not arguments.output:
        raise ConfigError("--save-logits needs a place", fix="say --output DIR")
    for option in (
        "max_context", "context_capacity", "host_capacity", "disk_cache", "state_tier",
    ):
        if option in arguments:
            raise ConfigError(
                f"--{option.replace('_', '-')} has no meaning here", fix="see --context",
                why="windows are read one at a time, each from an empty state",
            )


def _corpus(arguments: Namespace) -> Corpus:
    if "text" in arguments:
        return read_text(arguments.text)
    return read_corpus(arguments.corpus, quick=arguments.quick)


def _plan(arguments: Namespace, console: Console) -> EnginePlan:
    config, plugins = prepare(arguments, console.progress)
    if config.spec:
        raise ConfigError(
            "perplexity is measured without speculation", where=f"--spec {config.spec}",
            why="drafts change the speed of an answer, never its probabilities",
            fix="leave --spec out",
        )
    config = evolve(
        config, max_context=arguments.context, max_concurrency=1, context_capacity=None,
        prefix_cache=False, host_capacity=None, disk_cache=None, state_tier=None,
    )
    return resolve(config, plugins, max_logits=min(STEP_LOGITS, config.prefill_chunk))
