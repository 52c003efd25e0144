"""Options from files and flags: what comes out, and what is refused with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from attrs import evolve, fields

from ninfer_core.api import ConfigError, PromptOptions
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.structure import structure
from ninfer_serve.cli import main
from ninfer_serve.config import (
    ServeConfig,
    api_keys,
    launch_options,
    load,
    prompt_options,
    sections,
)
from ninfer_serve.options import flag_of, given, parser, to_toml

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "plugins/serve/examples").glob("*.toml"))


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def from_flags(*words, path=None):
    return load(path, given(parser().parse_args(words)))


def test_flags_win_over_the_file_and_that_over_defaults(tmp_path):
    path = write(tmp_path, """
        [model]
        path = "m.ninfer"
        [server]
        port = 9000
        host = "::1"
        [limits]
        context_capacity = "auto"
        queue_timeout_s = 3
    """)
    config = from_flags("--port", "9001", "--temperature", "0", path=path)
    assert (config.server.port, config.server.host) == (9001, "::1")
    assert config.model.path == "m.ninfer"
    assert config.limits.queue_timeout_s == 3.0
    assert config.sampling.given == {"temperature": 0.0}
    assert config.server.heartbeat_s == 5.0
    assert from_flags() == ServeConfig()


def test_every_key_is_a_flag():
    flags = [flag_of(key) for _, keys in sections().values() for key in keys]
    assert len({*flags}) == len(flags)
    text = parser().format_help()
    assert all(f"--{flag}" in text for flag in flags)
    assert all(key.metadata["text"] for _, keys in sections().values() for key in keys)


def test_flags_of_every_kind():
    config = from_flags(
        "--no-thinking", "--prefix-cache", "--lm-head-draft", "--api-key", "a", "--api-key", "b",
        "--kernel", "linear=x", "--kernel", "rope=y", "--context-capacity", "1000",
        "--cors-origin", "*", "--plugin", "m", "--reasoning-effort", "low", "--spec", "mtp",
    )
    assert prompt_options(config) == PromptOptions(thinking=False, effort="low")
    assert config.auth.api_keys == ("a", "b")
    assert config.profile.kernels == {"linear": "x", "rope": "y"}
    assert config.limits.context_capacity == 1000
    assert (config.server.cors_origins, config.plugins.load) == (("*",), ("m",))
    assert config.speculation.name == "mtp" and config.speculation.lm_head_draft


def test_a_file_adds_to_what_flags_say_of_a_section(tmp_path):
    path = write(tmp_path, '[profile]\nname = "cpu"\n[auth]\napi_keys = ["a"]\n')
    config = from_flags("--threads", "2", path=path)
    assert (config.profile.name, config.profile.threads) == ("cpu", 2)
    assert config.auth.api_keys == ("a",)


@pytest.mark.parametrize(("text", "words"), [
    ("[server]\nprot = 1", "server: unknown option 'prot' (did you mean 'port'?)"),
    ("[sever]\nport = 1", "unknown option 'sever' (did you mean 'server'?)"),
    ("port = 1", "unknown option 'port'"),
    ("[server]\nport = 70000", "server"), ("[server]\nport = true", "server.port: must be int"),
    ('[server]\nport = "80"', "server.port"), ("[server]\nheartbeat_s = 0", "heartbeat_s"),
    ("[limits]\ncontext_capacity = 0", "limits.context_capacity"),
    ("[sampling]\ntemperature = 3.0", "temperature is out of range"),
    ("[sampling]\ntop_p = nan", "top_p is out of range"),
    ('[serving]\nreasoning_effort = "huge"', "reasoning_effort"),
    ("[auth]\napi_keys = [1]", "auth.api_keys"), ('[auth]\napi_keys = "abc"', "auth.api_keys"),
    ("server = 3", "server"), ("[server", "cannot read"), ('[log]\nlevel = "loud"', "level"),
    ("[model]\nname = \"\"", "name"),
])
def test_what_is_wrong_is_named_with_its_place(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), {})
    assert words in str(caught.value)
    assert "config.toml" in str(caught.value)


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"prot.*max_contxt|max_contxt.*prot"):
        load(write(tmp_path, "[server]\nprot = 1\n[limits]\nmax_contxt = 1"), {})


def test_the_model_needs_no_flag():
    assert from_flags("m", "--port", "1").model.path == "m"
    assert from_flags("--port", "1").model.path is None


def test_the_engine_gets_its_part():
    config = from_flags("--model", "m", "--spec", "mtp", "--draft-tokens", "2",
                        "--max-concurrency", "3", "--no-prefix-cache", "--profile", "cpu")
    launch = structure(launch_options(config), LaunchConfig)
    assert (launch.model, launch.spec, launch.draft_tokens) == ("m", "mtp", 2)
    assert (launch.max_concurrency, launch.prefix_cache, launch.profile) == (3, False, "cpu")
    assert launch_options(config).keys() == {each.name for each in fields(LaunchConfig)}
    assert structure(launch_options(ServeConfig()), LaunchConfig) == LaunchConfig()
    with pytest.raises(ConfigError, match="needs 'spec'"):
        structure(launch_options(from_flags("--draft-tokens", "2")), LaunchConfig)


def test_a_printed_configuration_is_one(capsys):
    words = ["--port", "0", "--kernel", "a=b", "--api-key", "top secret", "--model", 'a "b" \\ é',
             "--temperature", "0.25", "--no-thinking"]
    assert main([*words, "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "secret" not in text
    config = from_flags(*words)
    shown = evolve(config, auth=evolve(config.auth, api_keys=("***",)))
    assert load(None, tomllib.loads(text)) == shown
    assert load(None, tomllib.loads(to_toml(ServeConfig()))) == ServeConfig()


@pytest.mark.parametrize("words", [["--prot", "1"], ["--port"], ["--port", "x"], ["what"]])
def test_a_wrong_command_line_is_an_error(words, capsys):
    assert main(words) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("content", [
    b"one\n\n  two \n", b"\xef\xbb\xbfone\r\n\r\ntwo\r\n", b"one\rtwo"])
def test_keys_come_from_a_file_too(tmp_path, content):
    file = tmp_path / "keys"
    file.write_bytes(content)
    assert api_keys(from_flags("--api-key", "zero", "--api-keys-file", str(file))) == (
        "zero", "one", "two")
    assert api_keys(ServeConfig()) == ()


@pytest.mark.parametrize("content", [None, "", "\n", "süß", "a\x00b", b"\xff"])
def test_keys_that_are_none_are_refused(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError):
        api_keys(from_flags("--api-keys-file", str(file)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_what_they_say(path):
    config = load(path, {})
    launch = structure(launch_options(config), LaunchConfig)
    assert launch.profile == path.stem
    assert f"--config {path.name}" in path.read_text()
    assert config.server.host == "127.0.0.1"


def test_every_profile_has_an_example():
    profiles = {path.parent.name for path in ROOT.glob("hardware_profiles/*/*/plugin.py")}
    names = {path.removeprefix("ninfer_profile_") for path in profiles}
    assert {path.stem for path in EXAMPLES} == names
