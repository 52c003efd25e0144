"""The benchmarks there are, and their options. Importing this imports no torch."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ninfer_core.api import LazyRef
from ninfer_core.cli import options
from ninfer_core.cli.options import Parser, ranged


@frozen
class Benchmark:
    """One benchmark.

    :ivar words: what it is called by, ``engine host``.
    :ivar run: ``(argparse.Namespace) -> ninfer_bench.report.Report``.
    :ivar options: declares what it takes, but ``--json``.
    """

    words: str
    summary: str
    run: LazyRef = field(converter=LazyRef)
    options: Callable[[Parser], None]


def declare(parser: Parser) -> None:
    """A subcommand for each benchmark, in groups by their first words."""
    groups: dict[str, Any] = {"": _subparsers(parser)}
    for benchmark in BENCHMARKS:
        group, _, name = benchmark.words.rpartition(" ")
        if group not in groups:
            made = groups[""].add_parser(group, help=f"{group} benchmarks")
            groups[group] = _subparsers(made)
        own = groups[group].add_parser(
            name, help=benchmark.summary, description=benchmark.summary)
        benchmark.options(own)
        own.add_argument("--json", action="store_true", default=False,
                         help="print one object of JSON instead of tables")
        own.set_defaults(benchmark=benchmark)
        _plugins_behind(own)


def _subparsers(parser: Parser) -> Any:
    def make(prog: str, description: str = "", **_: object) -> Parser:
        return Parser(prog, description)

    made: Any = make  # a function will do where a class is declared
    return parser.add_subparsers(metavar="BENCHMARK", required=True, parser_class=made)


def _plugins_behind(parser: Parser) -> None:
    """Take the options that all commands have behind the words as well; one that is not given
    there leaves what was given before them."""
    before = {*parser._actions}
    options.plugins(parser)
    for action in {*parser._actions} - before:
        action.default = SUPPRESS


def _host(parser: Parser) -> None:
    add = parser.add_argument_group("steps").add_argument
    add("--rows", type=ranged(int, 1, 64), default=8, metavar="N",
        help="requests that decode at once (default: 8)")
    add("--steps", type=ranged(int, 10), default=2000, metavar="N",
        help="steps of each run (default: 2000)")
    add("--context", type=ranged(int, 1), default=512, metavar="N",
        help="tokens of each prompt (default: 512)")
    add("--limit", type=ranged(float, 0), default=300.0, metavar="US",
        help="microseconds that the median may take (default: 300)")


def _model(parser: Parser) -> None:
    """A model that is loaded as for any other command, or a tiny one."""
    options.model(parser)
    add = parser.add_argument_group("model").add_argument
    add("--tiny", default="qwen_dense", metavar="PACK",
        help="without MODEL: the tiny model of a pack, random weights (default: qwen_dense)")
    add("--sequences", type=ranged(int, 1, 8), default=8, metavar="N",
        help="most requests that run at once (default: 8)")
    options.launch(parser)


def _agent(parser: Parser) -> None:
    add = parser.add_argument_group("trace").add_argument
    add("--turns", type=ranged(int, 2), default=30, metavar="N",
        help="turns of the main conversation (default: 30)")
    add("--system-tokens", type=ranged(int, 64), default=8000, metavar="N",
        help="of the system prompt at first, tools included (default: 8000)")
    add("--nonce", action="store_true", default=False,
        help="begin every system prompt with a line of its own, and explain the misses")
    add("--least", type=ranged(float, 0, 100), default=97.0, metavar="PERCENT",
        help="of the reusable tokens that must be reused (default: 97)")
    _model(parser)


def _load(parser: Parser) -> None:
    add = parser.add_argument_group("load").add_argument
    add("--clients", type=ranged(int, 1), default=8, metavar="N", help="at once (default: 8)")
    add("--seconds", type=ranged(float, 1), default=600.0, metavar="S",
        help="after which no request begins (default: 600)")
    add("--kinds", type=ranged(int, 2), default=32, metavar="N",
        help="different requests (default: 32)")
    add("--longest", type=ranged(int, 128), default=1536, metavar="N",
        help="tokens of the longest prompt (default: 1536)")
    add("--seed", type=ranged(int, 0), default=0, metavar="N", help="of all choices (default: 0)")
    add("--free-answers", action="store_true", default=False,
        help="do not compare answers with those of the same requests alone, for kernels whose "
        "bits depend on the batch")
    _model(parser)


def _soak(parser: Parser) -> None:
    add = parser.add_argument_group("schedules").add_argument
    add("--seconds", type=ranged(float, 0), default=60.0, metavar="S",
        help="after which no schedule begins (default: 60)")
    add("--seed", type=ranged(int, 0), default=0, metavar="N",
        help="of the first schedule; each next one has the next seed (default: 0)")
    add("--jobs", type=ranged(int, 1), default=8, metavar="N",
        help="most requests of a schedule (default: 8)")


def _numbers(low: int, high: float = inf, step: int = 1) -> Callable[[str], list[int]]:
    """An option type: integers of ``low..high`` with commas between, multiples of ``step``."""
    one = ranged(int, low, high)
    wanted = f"integers of {low} or more" if high == inf else f"integers of {low}..{high:g}"
    wanted += f", multiples of {step}," if step > 1 else ""

    def convert(text: str) -> list[int]:
        try:
            found = [one(word) for word in text.split(",")]
        except ArgumentTypeError:
            found = []
        if not found or any(number % step for number in found):
            raise ArgumentTypeError(f"must be {wanted} with commas between, not {text!r}")
        return found

    return convert


def _catalogue(parser: Parser) -> None:
    """A model of which no weights are read."""
    parser.add_argument("model", nargs="?", default=None, metavar="MODEL",
                        help=".ninfer file, name of an embedded model or of a card "
                        "(default: the default embedded model)")


def _sizes(parser: Parser) -> None:
    _catalogue(parser)
    add = parser.add_argument_group("steps").add_argument
    _changes(add)
    add("--rows", type=_numbers(1, 8), default=[1], metavar="N,N",
        help="sequences that decode at once, 1..8 (default: 1)")
    add("--widths", type=_numbers(1, 16), default=[1], metavar="N,N",
        help="tokens of each of them, 1..16 (default: 1)")
    add("--contexts", type=_numbers(1), default=[1024], metavar="N,N",
        help="tokens before the step (default: 1024)")
    add("--prefill", type=_numbers(64, step=64), default=[], metavar="N,N",
        help="tokens of chunks of a prompt, multiples of 64 (default: none)")
    options.launch(parser)


def _changes(add: Callable[..., Any]) -> None:
    """Of a card."""
    add("--format", default="", metavar="NAME",
        help="of a card: store all matrices in this format instead of its recipe's")
    add("--layers", type=ranged(int, 1), default=0, metavar="N",
        help="of a card: the first N layers alone")


def _step(parser: Parser) -> None:
    _sizes(parser)
    add = parser.add_argument_group("more steps").add_argument
    add("--sweep", type=_numbers(1), default=[], metavar="N,N",
        help="contexts of a plain step of one sequence, beside those of --contexts (default: none)")
    add("--prompt", type=ranged(int, 1), default=0, metavar="N",
        help="tokens of a prompt that is read from its begin, in chunks of each of --prefill "
        "(default: none)")
    add("--launches", action="store_true", default=False,
        help="list the kernels of steps on a GPU, as its driver clocks them")


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ArgumentTypeError(f"must be K/N, K within 1..N, not {text!r}")
    return int(part), int(parts)


def _tune(parser: Parser) -> None:
    _catalogue(parser)
    add = parser.add_argument_group("variants").add_argument
    _changes(add)
    add("--tokens", type=_numbers(1, 64), default=[1, 4, 8, 16], metavar="N,N",
        help="rows of activations, 1..64 (default: 1,4,8,16)")
    add("--out", type=Path, default=None, metavar="FILE",
        help="write the rows of the best, in TOML")
    add("--part", type=_part, default=(1, 1), metavar="K/N",
        help="every Nth variant alone, from the Kth on, for several processes at once")
    add("--compile", action="store_true", default=False,
        help="check, but time nothing: fills the cache of a compiler")
    options.launch(parser)


def _rounds(parser: Parser) -> None:
    _catalogue(parser)
    add = parser.add_argument_group("cycles").add_argument
    _changes(add)
    add("--rows", type=_numbers(1, 8), default=[1], metavar="N,N",
        help="requests that decode at once, 1..8 (default: 1)")
    add("--context", type=ranged(int, 1), default=1024, metavar="N",
        help="tokens of each prompt (default: 1024)")
    add("--cycles", type=ranged(int, 1), default=64, metavar="N",
        help="that are timed (default: 64)")
    add("--acceptance", type=ranged(float, 0, 1), default=0.7, metavar="P",
        help="probability that a draft is accepted when those before it were (default: 0.7)")
    add("--sampled", action="store_true", default=False,
        help="draw tokens (temperature 1, top-k 20, top-p 0.95) instead of the likeliest")
    options.launch(parser)


def _start(parser: Parser) -> None:
    _catalogue(parser)
    add = parser.add_argument_group("start").add_argument
    add("--weights", type=Path, required=True, metavar="FILE",
        help="artifact with random weights of MODEL's catalogue; written if it is not there")
    add("--memory", type=ranged(int, 1), default=0, metavar="BYTES",
        help="plan and allocate as if the machine had no more")
    add("--prompt-tokens", type=ranged(int, 1), default=2048, metavar="N", help="(default: 2048)")
    add("--output-tokens", type=ranged(int, 2), default=64, metavar="N", help="(default: 64)")
    options.launch(parser)


BENCHMARKS = (
    Benchmark("start", "From files to answers: time, memory, and what the device waits for.",
              "ninfer_bench.start:run", _start),
    Benchmark("ops", "Each op of such steps by itself, beside the machine's limits.",
              "ninfer_bench.ops:run", _sizes),
    Benchmark("step", "Whole steps of a model of real dimensions with random weights.",
              "ninfer_bench.step:run", _step),
    Benchmark("tune", "Sizes of launches of every product of a model, timed and checked.",
              "ninfer_bench.tune:run", _tune),
    Benchmark("engine rounds", "Cycles on random weights: the host's share, drafts and their gain.",
              "ninfer_bench.rounds:run", _rounds),
    Benchmark("engine host", "The engine's own time in a step of decoding requests.",
              "ninfer_bench.host:run", _host),
    Benchmark("engine agent", "How much an agent's requests reuse, and why not more.",
              "ninfer_bench.agent:run", _agent),
    Benchmark("engine load", "Clients that ask for twice what the pool holds.",
              "ninfer_bench.load:run", _load),
    Benchmark("engine soak", "Random schedules, each held against its requests alone.",
              "ninfer_bench.soak:run", _soak),
)
