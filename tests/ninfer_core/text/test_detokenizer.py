"""The detokeniser never splits a character and does not depend on cutting."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.detokenizer import IncrementalDetokenizer


def decode(pieces):
    detokenizer = IncrementalDetokenizer()
    return [*map(detokenizer.feed, pieces), detokenizer.finish()]


def test_a_character_over_several_tokens_comes_whole():
    assert decode([b"\xf0\x9f", b"\xa6", b"\x8a", b"ok"]) == ["", "", "🦊", "ok", ""]


def test_an_unfinished_character_is_one_replacement_at_the_end():
    assert decode([b"go \xf0", b"\x9f\xa6"]) == ["go ", "", "\ufffd"]


def test_a_joined_emoji_survives_single_bytes():
    family = "👨‍👩‍👧‍👦"
    assert "".join(decode([bytes([byte]) for byte in family.encode()])) == family


@given(data=st.one_of(st.text().map(str.encode), st.binary()), cuts=st.lists(st.integers(0, 60)))
def test_independent_of_cutting(data, cuts):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    assert "".join(decode(pieces)) == data.decode(errors="replace")


@given(text=st.text())
def test_valid_text_never_shows_a_replacement(text):
    out = decode([bytes([byte]) for byte in text.encode()])
    assert "".join(out) == text
    assert out[-1] == ""
