"""Engines of models that are loaded as for any other command, or of a pack's tiny one."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from attrs import evolve, frozen

from ninfer_bench.synthetic import page_bytes
from ninfer_core.api import ConfigError, ModelPack, ParameterSpec
from ninfer_core.cli.console import Console
from ninfer_core.cli.launch import prepare
from ninfer_core.cli.plugins import find_plugins
from ninfer_core.config import EnginePlan, LaunchConfig, resolve
from ninfer_core.engine.load import LoadedEngine, load_engine
from ninfer_core.plugin_host import PluginReport, Registry
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_fixtures.tiny import TinyModel, tiny_resources

PRINTABLE = range(0x20, 0x7F)


@frozen(eq=False)
class Subject:
    """What is measured."""

    name: str
    plan: EnginePlan
    loaded: LoadedEngine

    def facts(self) -> dict[str, object]:
        """What figures depend on."""
        config = self.plan.config
        return {
            "model": self.name, "profile": config.profile, "kv_dtype": config.kv_dtype,
            "spec": config.spec, "max_context": config.max_context,
            "sequences": config.max_concurrency, "pool_pages": self.plan.num_pages,
            "pool_bytes": config.context_capacity, "host_bytes": config.host_capacity or 0,
            "kernels": sorted({choice.spec.name for choice in self.loaded.kernels}),
        }


@contextmanager
def open_subject(arguments: Namespace, *, max_context: int, pool_tokens: int) -> Iterator[Subject]:
    """Load the model that the options name.

    :param max_context, pool_tokens: where the options say nothing.
    """
    with Console(arguments.log_level) as console, _model_path(arguments) as name:
        with redirect_stdout(sys.stderr):  # a plugin that prints must not spoil the report
            config, plugins = prepare(arguments, console.progress)
            config = evolve(
                config, max_concurrency=arguments.sequences,
                max_context=config.max_context or max_context, prefix_cache=True,
            )
            if config.context_capacity is None:
                nbytes = _page_bytes(config, plugins) * -(-pool_tokens // PAGE_TOKENS)
                config = evolve(config, context_capacity=nbytes)
            plan = resolve(config, plugins)
            loaded = load_engine(plan, console.progress)
        yield Subject(name, plan, loaded)


def _page_bytes(config: LaunchConfig, plugins: PluginReport) -> int:
    """Bytes of a page of this launch; nothing is allocated, so nothing need fit."""
    return page_bytes(resolve(config, plugins, absent=True))


@contextmanager
def _model_path(arguments: Namespace) -> Iterator[str]:
    """Let the options name the tiny model if they name none; the name of the model."""
    if arguments.model is not None:
        yield str(arguments.model)
        return
    report = find_plugins(arguments, getattr(arguments, "profile", None))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"tiny-{arguments.tiny}.ninfer"
        _write_tiny(arguments.tiny, path, report.registry)
        arguments.model = str(path)
        yield f"tiny {arguments.tiny}"
        arguments.model = None


def _write_tiny(name: str, path: Path, registry: Registry) -> None:
    """A pack's tiny model, whose answers are printable: they come back from text as they were."""
    if name not in registry.packs:
        why = f"packs: {', '.join(registry.packs) or 'none'}"
        raise ConfigError(f"there is no pack {name!r}", where="--tiny", why=why)
    pack: ModelPack = registry.packs[name].spec.pack.load()()
    description = pack.tiny()
    config, texts = pack.configure(description), _texts()
    parameters = pack.parameters(config)
    model = TinyModel(description, parameters, registry)
    values, tokenizer = model.random_values(), pack.frontend(config, texts).tokenizer
    vocab_size = pack.operations(config)["vocab_size"]
    spoken = torch.zeros(vocab_size, 1)
    for token in range(tokenizer.vocab_size):
        text = tokenizer.token_bytes(token)
        spoken[token] = len(text) == 1 and text[0] in PRINTABLE
    for head in _heads(parameters, vocab_size):
        values[head] = values[head] * spoken
    model.write(path, values, texts=texts)


def _heads(parameters: Iterable[ParameterSpec], vocab_size: int) -> Iterator[str]:
    """Objects that logits are computed with."""
    for spec in parameters:
        if spec.kind == "projection" and spec.shape[0] == vocab_size:
            yield spec.tied_to or spec.name


def _texts() -> dict[str, bytes]:
    """The byte-level tokenizer, and a template that takes tools."""
    template = resources.files("ninfer_bench") / "resources" / "agent.jinja"
    return {**tiny_resources(), "chat_template.jinja": template.read_bytes()}
