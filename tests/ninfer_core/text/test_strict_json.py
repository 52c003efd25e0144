"""JSON and nothing else."""

import pytest

from ninfer_core.text.strict_json import parse_json


@pytest.mark.parametrize(("text", "value"), [
    ("1", 1), (" [1.5, null]\n", [1.5, None]), ('{"a": "\\u00e9"}', {"a": "é"}), ("1e300", 1e300),
])
def test_values(text, value):
    assert parse_json(text) == value


@pytest.mark.parametrize("text", [
    "", "NaN", "[Infinity]", "-Infinity", "1e999", "{'a': 1}", "True", "[" * 99_999, "9" * 9_999,
    "1 2", '"a\nb"',
])
def test_all_else_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)
