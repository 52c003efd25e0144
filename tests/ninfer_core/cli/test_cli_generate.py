"""One request from the command line to its streams, on a tiny random model."""

from __future__ import annotations

import json
import re

import pytest

from ninfer_core.api import OutputPart, RequestError, ToolCall
from ninfer_core.cli.console import Console
from ninfer_core.cli.exits import INTERRUPTED
from ninfer_core.engine.load import load_engine
from ninfer_core.text.frontend import ChatFrontend
from ninfer_core.text.parsers import PlainParser


@pytest.fixture
def answer(ninfer, tiny_model):
    """``(*arguments) -> (exit code, stdout, stderr)`` of a greedy answer of 8 tokens."""

    def answer(*arguments):
        given = ("--prompt", "hi") if "--messages" not in arguments else ()
        return ninfer(tiny_model, *given, "--max-tokens", 8, *arguments)

    return answer


def ids_of(err):
    [line] = re.findall(r"^generated ids:(.*)$", err, re.MULTILINE)
    return [int(each) for each in line.split()]


def test_the_answer_is_alone_on_stdout(answer):
    code, out, err = answer("--print-token-ids")
    assert code == 0 and out.endswith("\n")
    assert len(ids_of(err)) == 8
    assert answer("--log-level", "off") == (0, out, "")
    for word in ("prefill", "decode", "8 tokens, ended by output-limit", "MB resident", "pool  ",
                 "kernels"):
        assert word in err and word not in out


def test_what_a_plugin_prints_while_it_loads_is_no_answer(answer, monkeypatch):
    def noisy(*arguments):
        print("look at me")
        return load_engine(*arguments)

    expected = answer()[1]
    monkeypatch.setattr("ninfer_core.cli.generate.load_engine", noisy)
    _, out, err = answer()
    assert out == expected and "look at me" in err


def test_messages_and_prompt_are_the_same_request(answer, tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    assert answer("--messages", path)[:2] == answer()[:2]


def test_reasoning_options_reach_the_prompt(answer, monkeypatch):
    seen = []

    def prepare(self, messages, *, tools=(), options):
        seen.append(options)
        raise RequestError("enough")

    monkeypatch.setattr(ChatFrontend, "prepare", prepare)
    assert answer("--no-thinking")[0] == answer("--reasoning-effort", "low")[0] == 1
    assert [(each.thinking, each.effort) for each in seen] == [(False, None), (None, "low")]


def test_a_model_that_does_not_reason_says_so(answer):
    assert answer("--no-thinking")[:2] == answer()[:2]
    code, out, err = answer("--reasoning-effort", "high")
    assert (code, out) == (1, "") and "[reasoning effort]: it never reasons" in err


@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_a_budget_for_reasoning_that_is_turned_off_is_refused(answer, effort):
    code, out, err = answer("--reasoning-effort", effort, "--thinking-budget", 3)
    assert (code, out) == (1, "")
    assert "--thinking-budget is of no use: reasoning is turned off" in err


def test_nothing_is_said_of_kept_states_where_none_is_kept(answer):
    [pool] = re.findall(r"^pool .*", answer()[2], re.MULTILINE)
    assert "pages" in pool and "kept state" not in pool


def test_tool_calls_are_lines_after_the_content(answer, monkeypatch):
    class Calling(PlainParser):
        def finish(self):
            return [OutputPart("reasoning", "hm"), ToolCall(0, "f", '{"a": 1}')]

    monkeypatch.setattr(ChatFrontend, "parser", lambda self, prompt: Calling())
    content = answer("--raw-output")[1]
    _, out, err = answer()
    assert out == content + '{"name": "f", "arguments": {"a": 1}}\n'
    assert "hm\n" in err


def test_drafts_are_reported(answer):
    plain, drafted = answer(), answer("--spec", "ngram", "--max-tokens", 40)
    assert "drafts" not in plain[2]
    [line] = re.findall(r"^drafts .*$", drafted[2], re.MULTILINE)
    assert re.fullmatch(
        r"drafts   \d+ of \d+ accepted \([\d.]+ %\) in \d+ rounds, at each position [\d ]+; "
        r"\d+ steps had no room for any", line)


def test_sampling_options_reach_the_sampler(answer):
    def ids(*arguments):
        return ids_of(answer("--print-token-ids", *arguments)[2])

    hot = ("--temperature", "2", "--seed")
    assert ids(*hot, "1") == ids(*hot, "1") != ids(*hot, "2")
    assert ids(*hot, "1", "--greedy") == ids() == ids(*hot, "1", "--top-k", "1")


def test_stop_tokens_and_strings_end_the_answer(answer):
    _, out, err = answer("--print-token-ids")
    third = ids_of(err)[2]
    code, _, err = answer("--stop-token-id", third)
    assert code == 0 and "ended by stop-token" in err
    code, stopped, err = answer("--stop", out[3])
    assert code == 0 and "ended by stop-string" in err
    before = out[: out.index(out[3])]
    assert stopped == before + ("\n" if before and not before.endswith("\n") else "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--prompt", "x" * 300, "--max-context", "128"], "raise --max-context"),
        (["--kv-dtype", "fp7"], "--kv-dtype fp7"),
        (["--max-context", "0"], "max_context"),
        (["--prefill-chunk", "100"], "multiple of 64"),
        (["--kernel", "linear=warp"], "warp"),
        (["--kernel", "linear"], "KEY=VALUE"),
        (["--stop", ""], "stop string is empty"),
    ],
)
def test_errors_are_exit_1_with_nothing_on_stdout(ninfer, tiny_model, arguments, problem):
    given = [] if "--prompt" in arguments else ["--prompt", "hi"]
    code, out, err = ninfer(tiny_model, *given, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: ") and problem in err and "Traceback" not in err


def test_launch_options_come_from_toml_under_the_command_line(answer, tmp_path):
    path = tmp_path / "launch.toml"
    path.write_text("max_context = 256\nkv_dtype = 'bf16'\n")
    _, _, err = answer("--config", path, "--max-context", 192)
    assert "max_context 192" in err and "kv_dtype bf16" in err
    path.write_text("max_contexts = 256\n")
    code, _, err = answer("--config", path)
    assert code == 1 and "did you mean 'max_context'" in err


def test_ctrl_c_cancels_and_reports_what_there_is(answer, monkeypatch):
    write, written = Console.stream, []

    def interrupted_once(self, channel, text):
        write(self, channel, text)
        written.append(text)
        if len(written) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "stream", interrupted_once)
    code, out, err = answer("--max-tokens", 1500)
    assert code == INTERRUPTED
    assert out == "".join(written).rstrip("\n") + "\n"
    assert "ended by cancelled" in err and "Traceback" not in err
