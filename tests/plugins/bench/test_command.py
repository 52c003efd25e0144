"""What all benchmarks have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_bench.options import BENCHMARKS, declare
from ninfer_bench.report import Report, percent, quantile
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
