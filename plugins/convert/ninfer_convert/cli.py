"""The command ``ninfer-convert``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from ninfer_artifact_writer.writer import MAX_FILE_BYTES
from ninfer_convert.conversion import convert_checkpoint
from ninfer_convert.draft_head import DraftHead
from ninfer_convert.inspection import describe
from ninfer_convert.recipe import load_recipe
from ninfer_convert.source import open_source
from ninfer_core.api import ConfigError
from ninfer_core.artifact.container import open_artifact
from ninfer_core.cli.console import Console
from ninfer_core.cli.exits import exit_code
from ninfer_core.cli.options import Parser, ranged
from ninfer_core.plugin_host import PluginSelection, choose_pack, load_plugins


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ninfer-convert`` and return its exit code, see `exit_code`."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return exit_code(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["inspect"]:
        parsed = _inspect_parser().parse_args(arguments[1:])
        print(describe(open_artifact(parsed.file)))
    else:
        _convert(_convert_parser().parse_args(arguments))
    return 0


def _inspect_parser() -> Parser:
    parser = Parser("ninfer-convert inspect", "Show the catalogue of a .ninfer artifact.")
    parser.add_argument("file", type=Path, metavar="FILE", help="entry file of the artifact")
    return parser


def _convert_parser() -> Parser:
    parser = Parser(
        "ninfer-convert", "Convert a checkpoint to a .ninfer artifact.",
        epilog="'ninfer-convert inspect FILE' shows what is in an artifact",
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="directory of safetensors, or GGUF file")
    add("--out", type=Path, required=True, metavar="FILE", help="artifact to write; never replaced")
    add("--recipe", metavar="FILE|NAME", default=None,
        help="how matrices are stored (default: the pack's recipe)")
    add("--pack", metavar="NAME", default=None, help="model pack (default: the highest claim)")
    add("--components", type=_names, default=None, metavar="NAME,...",
        help="components to convert, e.g. text (default: all that the checkpoint has)")
    add("--proposal", type=_rows, default=None, metavar="N|full",
        help="add a draft head over N tokens, or all of them")
    add("--proposal-corpus", type=Path, default=None, metavar="FILE",
        help="text whose most frequent tokens the draft head gets (default: the lowest ids)")
    add("--name", metavar="NAME", default="", help="public name of the model")
    add("--max-file-bytes", type=ranged(int, 1), default=MAX_FILE_BYTES, metavar="N",
        help=f"split the set into files of at most N bytes (default: {MAX_FILE_BYTES})")
    add("-p", "--plugin", action="append", default=[], metavar="MODULE",
        help="load an uninstalled plugin")
    add("--no-plugin", action="append", default=[], metavar="NAME", help="leave a plugin out")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _rows(text: str) -> DraftHead:
    return DraftHead(None if text == "full" else ranged(int, 1)(text))


def _draft_head(parsed: Namespace) -> DraftHead | None:
    wanted: DraftHead | None = parsed.proposal
    if parsed.proposal_corpus is None:
        return wanted
    if wanted is None or wanted.rows is None:
        raise ConfigError("--proposal-corpus needs --proposal N")
    return evolve(wanted, corpus=parsed.proposal_corpus)


def _convert(parsed: Namespace) -> None:
    draft_head = _draft_head(parsed)
    plugins = load_plugins(PluginSelection.from_environment(
        modules=tuple(parsed.plugin), blocked=tuple(parsed.no_plugin)
    ))
    checkpoint = open_source(parsed.source)
    pack = choose_pack(plugins, checkpoint.description, parsed.pack).spec
    recipe = None if parsed.recipe is None else load_recipe(parsed.recipe, pack.recipes)
    with Console("info") as console:
        report = convert_checkpoint(
            checkpoint, parsed.out, pack=pack.pack.load()(), registry=plugins.registry,
            recipe=recipe, progress=console.progress, name=parsed.name,
            provenance={"source": parsed.source.name}, max_file_bytes=parsed.max_file_bytes,
            components=parsed.components, draft_head=draft_head,
        )
    print(f"{parsed.out}: {report}", file=sys.stderr)
