"""Variants of products: checked, timed, and written as tables have them."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_bench import tune
from ninfer_bench.tune import Timed, Tuned, best_of, rows_of


@pytest.fixture
def tuned(ninfer, tiny_model, once, monkeypatch):
    """``(*arguments) -> (exit code, the object it prints)`` on a model of fp32 matrices."""
    monkeypatch.setattr(tune, "SECONDS", 0.0)
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def tuned(*arguments):
        code, out, err = ninfer(
            "bench", "tune", tiny_model, "--tokens", "1,3", "--json", *map(str, arguments),
            "-p", "ninfer_bench.plugin", "-p", "tuned_plugin")
        assert "{" in out, err
        return code, json.loads(out)

    return tuned


def test_the_best_that_is_right_is_written(tuned, tmp_path):
    code, found = tuned("--out", tmp_path / "rows.toml")
    assert code == 1  # a wrong one is a problem
    assert len(found["problems"]) == len(found["products"]) > 0
    assert all("differs from the reference by 0.5 for 1 tokens" in each
               for each in found["problems"])
    for product in found["products"]:
        right, wrong, failing = product["variants"]
        assert set(right["us"]) == set(product["now_us"]) == {"1", "3"} and not right["fault"]
        assert product["best"]["tile"] == [0] and product["best"]["table"] == "7.fp32"
        assert not wrong["us"] and not failing["us"]
        assert failing["fault"] == "ValueError: too large"
    table = tomllib.loads((tmp_path / "rows.toml").read_text())["7"]["fp32"]
    shapes = [(row["rows"], row["depth"]) for row in table]
    assert len({*shapes}) == len(shapes)
    assert all(row["tile"] == [0] and len(row["us"]) == 2 for row in table)


def test_a_part_of_the_variants_can_be_compiled_alone(tuned, tmp_path):
    code, found = tuned("--part", "1/3", "--compile", "--out", tmp_path / "rows.toml")
    assert code == 0 and not (tmp_path / "rows.toml").exists()
    assert all([each["tile"] for each in product["variants"]] == [[0]] and not product["best"]
               for product in found["products"])


def test_without_variants_there_is_nothing_to_tune(ninfer, tiny_model, tmp_path):
    code, out, err = ninfer("bench", "tune", tiny_model, "--out", tmp_path / "rows.toml",
                            "-p", "ninfer_bench.plugin")
    assert code == 1 and not out and not (tmp_path / "rows.toml").exists()
    assert "there is nothing to tune" in err and "to fix: " in err


def test_parts_that_are_not_there_are_refused(ninfer, tiny_model):
    for part in ("0/2", "3/2", "x"):
        code, _, err = ninfer("bench", "tune", tiny_model, "--part", part,
                              "-p", "ninfer_bench.plugin")
        assert code == 1 and "--part" in err


@given(st.lists(st.lists(st.floats(1, 100), min_size=2, max_size=2), min_size=1))
def test_no_other_variant_is_faster_for_every_number_of_tokens(times):
    variants = [Timed("t", {}, dict(enumerate(each))) for each in times]
    best = best_of(variants)
    assert not any(all(other.us[n] < best.us[n] for n in (0, 1)) for other in variants)


def test_shapes_of_one_table_come_once():
    def product(name, rows, tile, us):
        found = [Timed("9.q4", {"rows": rows, "tile": [n]}, {1: us}) for n in (1, 2)]
        return Tuned(name, 10, {1: 5.0}, found, found[tile - 1])

    text = rows_of([product("linear", 32, 2, 1.26), product("swiglu", 32, 1, 2.0),
                    product("linear", 64, 1, 3.0), Tuned("linear", 10, {}, [], None)])
    assert tomllib.loads(text) == {"9": {"q4": [
        {"rows": 32, "tile": [2], "us": [1.3]}, {"rows": 64, "tile": [1], "us": [3.0]}]}}
    assert best_of([]) is None
