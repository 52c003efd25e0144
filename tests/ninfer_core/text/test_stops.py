"""Stop strings: across cuts, nothing sent too early, nothing lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.stops import StopStrings

ABC = st.text("abc", max_size=24)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def run(stops, pieces):
    """Released pieces (with what is left at the end) and the matched stop."""
    matcher, out = StopStrings(stops), []
    for piece in pieces:
        out.append(matcher.feed(piece))
        if matcher.matched is not None:
            return out, matcher.matched
    return [*out, matcher.finish()], None


def by_definition(stops, text):
    """The stop that completes first; of those completed together the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_a_stop_over_three_pieces_leaves_nothing_of_itself():
    assert run(["END OF"], ["go E", "ND", " OF x"]) == (["go ", "", ""], "END OF")


def test_withheld_text_is_released_when_no_match_follows():
    assert run(["END OF"], ["go EN", "TER"]) == (["go ", "ENTER", ""], None)


def test_text_that_cannot_match_passes_at_once():
    assert run(["zzzz"], ["hello", " there"]) == (["hello", " there", ""], None)


def test_the_end_of_the_stream_releases_the_beginning_of_a_stop():
    assert run(["END OF"], ["go END O"]) == (["go ", "END O"], None)


@pytest.mark.parametrize(("stops", "text", "expected"), [
    (["STOP", "HALT"], "A B HALT C STOP", ("A B ", "HALT")),
    (["bc", "abcd"], "xabcd", ("xa", "bc")),
    (["bc", "abc"], "xabcd", ("x", "abc")),
])
def test_the_match_that_completes_first_wins_then_the_longest(stops, text, expected):
    out, matched = run(stops, [text])
    assert ("".join(out), matched) == expected


@given(stops=STOPS, text=ABC, cuts=st.lists(st.integers(0, 24)))
def test_equals_the_definition_however_it_is_cut(stops, text, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    out, matched = run(stops, [text[a:b] for a, b in pairwise(bounds)])
    assert ("".join(out), matched) == by_definition(stops, text)


@given(stops=STOPS, text=ABC)
def test_withholds_no_more_than_a_beginning_of_a_stop(stops, text):
    matcher = StopStrings(stops)
    released = "".join(matcher.feed(char) for char in text)
    if matcher.matched is None:
        held = matcher.finish()
        assert released + held == text
        assert not held or any(s.startswith(held) and s != held for s in stops)
