"""What all benchmarks have in common."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_bench.options import BENCHMARKS, declare
from ninfer_bench.report import Report, percent, quantile
from ninfer_core.api import ConfigError
from ninfer_core.cli.main import main
from ninfer_core.cli.options import Parser, plugins


@pytest.fixture
def parser():
    parser = Parser("ninfer bench", "")
    declare(parser)
    plugins(parser)
    return parser


REQUIRED = {"start": ["--weights", "q8_g32_fp16"]}
"""Options that a benchmark does not go without."""


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.words)
def test_every_benchmark_is_there(parser, benchmark):
    words = benchmark.words
    found = parser.parse_args([*words.split(), *REQUIRED.get(words, [])])
    assert found.benchmark is benchmark
    assert found.json is False
    assert callable(benchmark.run.load())


def test_options_of_all_commands_are_taken_before_and_behind_the_words(parser):
    words = ["engine", "soak"]
    for arguments in (["--log-level", "off", *words], [*words, "--log-level", "off"]):
        assert parser.parse_args(arguments).log_level == "off"
    found = parser.parse_args(["--no-plugin", "one", *words])
    assert (found.no_plugin, found.plugin, found.log_level) == (["one"], [], "info")


@pytest.mark.parametrize("words", [[], ["engine"], ["engine", "nothing"], ["nothing"]])
def test_a_misspelt_benchmark_is_an_error(monkeypatch, capsys, words):
    monkeypatch.setenv("NINFER_PLUGINS", "bench")
    assert main(["bench", *words]) == 1
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("words, message", [
    ("step --rows 0", "--rows: must be integers of 1..8 with commas between, not '0'"),
    ("ops --rows 1,9", "--rows: must be integers of 1..8 with commas between, not '1,9'"),
    ("engine rounds --rows x", "--rows: must be integers of 1..8 with commas between, not 'x'"),
    ("step --widths 1,17", "--widths: must be integers of 1..16"),
    ("step --contexts 0", "--contexts: must be integers of 1 or more with commas between"),
    ("step --contexts 64,", "--contexts: must be integers of 1 or more with commas between"),
    ("step --sweep -1", "--sweep: must be integers of 1 or more"),
    ("step --prefill 0", "--prefill: must be integers of 64 or more, multiples of 64, with commas"),
    ("ops --prefill 64,100", "--prefill: must be integers of 64 or more, multiples of 64,"),
    ("tune --tokens 65", "--tokens: must be integers of 1..64"),
    ("tune --part 5/2", "--part: must be K/N, K within 1..N, not '5/2'"),
    ("tune --part x", "--part: must be K/N, K within 1..N, not 'x'"),
])
def test_numbers_out_of_range_are_refused(parser, words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parser.parse_args(words.split())


def test_numbers_come_with_commas_between(parser):
    words = "step --rows 1,8 --widths 16 --contexts 1,70 --prefill 64,2048 --sweep 3"
    found = parser.parse_args(words.split())
    assert (found.rows, found.widths, found.contexts) == ([1, 8], [16], [1, 70])
    assert (found.prefill, found.sweep) == ([64, 2048], [3])
    assert parser.parse_args(["ops"]).prefill == []


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_first_value_that_enough_do_not_exceed(values, share):
    found = quantile(values, share)
    enough = [v for v in values if sum(other <= v for other in values) >= share * len(values)]
    assert found == min(enough)


def test_without_values_there_are_no_quantiles():
    assert quantile([], 0.5) == 0
    assert percent(1, 0) == "-"


def test_problems_are_told_to_readers_and_to_programs():
    report = Report({"a": 1}, {"heading": [("x", "y")], "nothing": []}, ("it leaks",))
    assert report.text() == "heading\nx  y\n\nPROBLEM: it leaks"
    assert '"problems": [\n    "it leaks"\n  ]' in report.to_json()
