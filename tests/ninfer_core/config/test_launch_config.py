"""Launch options from TOML and overrides, and how their faults are told."""

from __future__ import annotations

import pytest

from ninfer_core.api import ConfigError
from ninfer_core.config import LaunchConfig, load_config


def write(tmp_path, text):
    path = tmp_path / "launch.toml"
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_hold():
    assert load_config(None, {}) == LaunchConfig()


def test_overrides_win_over_the_file_and_none_does_not(tmp_path):
    path = write(tmp_path, 'model = "a.ninfer"\nmax_context = 4096\nthreads = 2\n')
    config = load_config(path, {"max_context": 512, "threads": None, "kv_dtype": "int8"})
    assert (config.model, config.max_context, config.threads) == ("a.ninfer", 512, 2)
    assert config.kv_dtype == "int8"


def test_kernels_are_merged_by_op(tmp_path):
    path = write(tmp_path, '[kernels]\nlinear = "a"\nswiglu = "b"\n')
    config = load_config(path, {"kernels": {"linear": "c"}})
    assert config.kernels == {"linear": "c", "swiglu": "b"}


@pytest.mark.parametrize(("text", "why"), [
    ("max_contxt = 1", "unknown option 'max_contxt' (did you mean 'max_context'?)"),
    ("zebra = 1", "unknown option 'zebra'"),
    ('max_context = "many"', "max_context: must be int, not 'many'"),
    ("max_context = 1.5", "max_context: must be int, not 1.5"),
    ("max_context = true", "max_context: must be int, not True"),
    ("kv_dtype = 8", "kv_dtype: must be str, not 8"),
    ("max_context = 0", "'max_context' must be >= 1: 0"),
    ("max_concurrency = 9", "'max_concurrency' must be in range(1, 9) (got 9)"),
    ("prefill_chunk = 100", "'prefill_chunk' must be a multiple of 64: 100"),
    ("context_capacity = 0", "context_capacity: must be a number of bytes or"),
    ('context_capacity = "all"', "context_capacity: must be a number of bytes or"),
    ("context_capacity = true", "context_capacity: must be a number of bytes or"),
    ('queue_timeout_s = "long"', "queue_timeout_s: must be a number, not 'long'"),
    ("queue_timeout_s = 0", "'queue_timeout_s' must be > 0"),
    ("prefix_cache = false\nhost_capacity = 1", "'host_capacity' needs 'prefix_cache'"),
    ('prefix_cache = false\ndisk_cache = "x"', "'disk_cache' needs 'prefix_cache'"),
    ('state_tier = "x"', "'state_tier' needs 'disk_cache'"),
    ("draft_tokens = 3", "'draft_tokens' needs 'spec'"),
    ("lm_head_draft = true", "'lm_head_draft' needs 'spec'"),
    ('spec = "toy"\nlm_head_draft = 1', "lm_head_draft: must be bool, not 1"),
    ('spec = "toy"\ndraft_tokens = 16', "'draft_tokens' must be in range(1, 16) (got 16)"),
    ("[kernels]\nlinear = 1", "linear"),
    ("kernels = 1", "kernels"),
    ("threads = -1", "'threads' must be in range(1, 1025) (got -1)"),
    ("threads = 100_000", "'threads' must be in range(1, 1025)"),
])
def test_faults_name_the_option_and_the_file(tmp_path, text, why):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert why in caught.value.why
    assert caught.value.where == str(path)
    assert "Attribute(" not in caught.value.why


def test_all_faults_are_told_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, 'threads = "x"\nzebra = 1\nmodel = 3'), {})
    for word in ("threads", "zebra", "model"):
        assert word in caught.value.why


def test_overrides_are_checked_too():
    with pytest.raises(ConfigError, match="unknown option 'colour'"):
        load_config(None, {"colour": "red"})


@pytest.mark.parametrize("text", [None, "= 1", "a = 1\na = 2", "a = " + "[" * 5000])
def test_a_file_that_is_absent_or_no_toml(tmp_path, text):
    path = tmp_path / "absent.toml" if text is None else write(tmp_path, text)
    with pytest.raises(ConfigError, match="cannot read launch options"):
        load_config(path, {})


@pytest.mark.parametrize(("options", "rows", "tokens"), [
    ({}, 1, 512),
    ({"spec": "s", "draft_tokens": 3}, 4, 512),
    ({"spec": "s", "draft_tokens": 15, "max_concurrency": 8, "prefill_chunk": 64}, 16, 128),
])
def test_sizes_of_steps(options, rows, tokens):
    config = load_config(None, options)
    assert (config.max_verify_rows, config.step_tokens) == (rows, tokens)


def test_a_capacity_is_a_number_or_auto(tmp_path):
    for text, expected in (('"auto"', "auto"), ("4096", 4096)):
        config = load_config(write(tmp_path, f"context_capacity = {text}"), {})
        assert config.context_capacity == expected
    assert load_config(None, {"queue_timeout_s": 5}).queue_timeout_s == 5.0
