import pytest

from ninfer_core.api import RequestError
from ninfer_serve.errors import MAX_MESSAGE, anthropic_error, openai_error


@pytest.mark.parametrize("members", [
    {"what": "x" * 200_000}, {"what": "a", "where": "x" * 200_000},
    {"what": "a", "why": "x" * 9_000},
])
def test_what_a_client_sent_comes_back_shortened(members):
    error = RequestError(**members)
    for body in (openai_error(error), anthropic_error(error)):
        texts = [each for each in body["error"].values() if isinstance(each, str)]
        assert max(map(len, texts)) <= MAX_MESSAGE + 5


def test_other_messages_are_whole():
    error = RequestError("a", why="b" * 3_000)
    assert openai_error(error)["error"]["message"] == f"a: {error.why}"
