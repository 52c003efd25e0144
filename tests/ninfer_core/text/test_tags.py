"""Tags are found however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.text.tags import TagLexer, ends_line

TAGS = ("<a>", "</a>", "<ab=")
PIECES = st.sampled_from([*TAGS, "<", "a", ">", "</", "=", "x", "\n"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def lex(tags, pieces):
    lexer = TagLexer(tags)
    return [atom for piece in pieces for atom in lexer.feed(piece)] + lexer.finish()


def joined(tags, atoms):
    """Atoms with the text between two tags as one."""
    out = []
    for atom in atoms:
        if atom in tags or not out or out[-1] in tags:
            out.append(atom)
        else:
            out[-1] += atom
    return out


def test_tags_are_atoms_of_their_own():
    assert lex(TAGS, ["x<a>", "</a", "><", "ab=y<a"]) == ["x", "<a>", "</a>", "<ab=", "y", "<a"]


def test_a_whole_tag_is_not_withheld():
    assert TagLexer(TAGS).feed("x</a>") == ["x", "</a>"]


@given(text=TEXTS, cuts=st.lists(st.integers(0, 40)))
def test_independent_of_cutting(text, cuts):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    atoms = lex(TAGS, [text[a:b] for a, b in pairwise(bounds)])
    assert all(atoms) and "".join(atoms) == text
    assert joined(TAGS, atoms) == joined(TAGS, lex(TAGS, [text]))


@pytest.mark.parametrize(("text", "at_start", "expected"), [
    ("", True, True), ("", False, False), ("\n", False, True), ("a\n \t", False, True),
    ("  ", True, True), ("  ", False, False), ("a\nb", True, False), ("a", True, False),
])
def test_line_starts(text, at_start, expected):
    assert ends_line(text, at_start=at_start) is expected
