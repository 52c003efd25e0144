"""Engines on a model that shows every mistake; see `ninfer_fixtures.hash_model`."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from ninfer_fixtures.engines import ask, build, serve
from ninfer_fixtures.hash_model import STATES, TABLE, HashModel
from ninfer_fixtures.letters import EOS, VOCAB, LetterFrontend, text_of
from ninfer_fixtures.oracle import Oracle, expected_tokens


@pytest.fixture
def prefer() -> Iterator[Callable[..., None]]:
    """``(*tokens)``: from now on model and predictor like these best, in this order."""
    before = TABLE.clone()

    def prefer(*tokens: int) -> None:
        for rank, token in enumerate(reversed(tokens), 1):
            TABLE[:, token] = 100.0 * rank

    yield prefer
    TABLE.copy_(before)


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """All of it, for test modules."""
    return SimpleNamespace(
        build=build, serve=serve, ask=ask, expected=expected_tokens, text=text_of, Oracle=Oracle,
        EOS=EOS, VOCAB=VOCAB, LetterFrontend=LetterFrontend, HashModel=HashModel, STATES=STATES,
    )
