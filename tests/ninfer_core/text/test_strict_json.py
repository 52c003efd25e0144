"""JSON and nothing else."""

import pytest

from ninfer_core.text.strict_json import MAX_DEPTH, parse_json


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


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}"), ('[{"a": ', "}]")])
def test_nesting_has_a_limit_far_from_that_of_the_stack(opening, closing):
    most = MAX_DEPTH // len(closing)
    assert parse_json(opening * most + "1" + closing * most)
    for levels in (most + 1, 500, 950):
        with pytest.raises(ValueError, match="nested"):
            parse_json(opening * levels + "1" + closing * levels)
