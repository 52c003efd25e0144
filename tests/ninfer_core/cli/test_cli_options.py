"""Options: ranges with messages that name them, and absence unless given."""

from __future__ import annotations

import pytest

from ninfer_core.api import ConfigError, Grammar, RequestError
from ninfer_core.cli.grammar import read_grammar
from ninfer_core.cli.main import GENERATE, parser_of


def parse(*arguments: str):
    return parser_of(GENERATE, "ninfer").parse_args(["--prompt", "hi", *arguments])


def test_what_is_not_given_is_absent():
    given = vars(parse())
    assert given["model"] is None
    assert not {"temperature", "seed", "max_context", "kv_dtype", "profile"} & set(given)


def test_the_model_may_stand_anywhere():
    assert parse("m.ninfer").model == "m.ninfer"
    assert parse("--greedy", "m.ninfer", "--seed", "1").model == "m.ninfer"
    assert parser_of(GENERATE, "ninfer").parse_args(["m", "--prompt", "hi"]).model == "m"


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--temperature", ["0", "2", "0.7"], ["-0.1", "2.1", "nan", "inf", "warm"]),
        ("--top-p", ["0", "1", "0.01"], ["-0.1", "1.01", "nan"]),
        ("--top-k", ["0", "50"], ["-1", "1.5"]),
        ("--min-p", ["0", "1"], ["-0.1", "1.1"]),
        ("--presence-penalty", ["-2", "2"], ["-2.1", "2.1"]),
        ("--frequency-penalty", ["-2", "2"], ["-2.1", "2.1"]),
        ("--repetition-penalty", ["1.1"], ["0", "-1", "inf"]),
        ("--seed", ["0", str(2**64 - 1)], ["-1", str(2**64), "0x1"]),
        ("--max-tokens", ["1"], ["0", "-1", "many"]),
        ("--stop-token-id", ["0"], ["-1"]),
        ("--thinking-budget", ["1"], ["0", "-1", "long"]),
    ],
)
def test_ranges(option, good, bad):
    for text in good:
        parse(f"{option}={text}")
    for text in bad:
        with pytest.raises(ConfigError, match=f"{option}: must be"):
            parse(f"{option}={text}")


@pytest.mark.parametrize(
    "arguments", [[], ["--prompt", "a", "--messages", "b"], ["--prompt", "a", "--wat"],
                  ["--prompt", "a", "--max-tok", "3"],
                  ["--prompt", "a", "--reasoning-effort", "huge"],
                  ["--prompt", "a", "--no-thinking", "--thinking-budget", "3"],
                  ["--prompt", "a", "--json-object", "--regex", "b"],
                  ["--prompt", "a", "--choice", "b", "--json-schema-file", "c"]],
)
def test_usage_errors_point_to_the_help(arguments):
    with pytest.raises(ConfigError, match="ninfer --help"):
        parser_of(GENERATE, "ninfer").parse_args(arguments)


def test_reasoning_is_the_models_unless_given():
    assert (parse().thinking, parse().reasoning_effort, parse().thinking_budget) == (None,) * 3
    assert parse("--no-thinking").thinking is False
    given = parse("--reasoning-effort", "xhigh", "--thinking-budget", "3")
    assert (given.reasoning_effort, given.thinking_budget) == ("xhigh", 3)


def test_drafting():
    given = parse("--spec", "mtp", "--draft-tokens", "4", "--lm-head-draft")
    assert (given.spec, given.draft_tokens, given.lm_head_draft) == ("mtp", 4, True)
    assert not {"spec", "draft_tokens", "lm_head_draft"} & set(vars(parse()))


def test_repeatable_options_collect():
    given = parse("--stop", "a", "--stop", "b", "--stop-token-id", "3", "-p", "x", "-p", "y")
    assert (given.stop, given.stop_token_id, given.plugin) == (["a", "b"], [3], ["x", "y"])


def test_grammars(tmp_path):
    file = tmp_path / "file"
    file.write_text('{"type": "integer"}')
    assert read_grammar(parse()) is None
    assert read_grammar(parse("--json-object")) == Grammar("json")
    assert read_grammar(parse("--regex", "a+")) == Grammar("regex", "a+")
    assert read_grammar(parse("--choice", "a", "--choice", "b")) == Grammar("choice", '["a", "b"]')
    for option, kind in (("--json-schema-file", "json_schema"), ("--grammar-file", "grammar")):
        assert read_grammar(parse(option, str(file))) == Grammar(kind, '{"type": "integer"}')
        with pytest.raises(RequestError, match="missing"):
            read_grammar(parse(option, str(tmp_path / "missing")))
