"""Text completions on the wire, with prompts of all kinds, echo and logprobs."""

from types import SimpleNamespace

import pytest
from litestar.testing import TestClient

from ninfer_core.engine.request import Finished, Logprobs, Started, TextDelta, TokenLogprob

ROUTES = "ninfer_serve.openai.routes:routes"


@pytest.fixture
def server(make_app):
    made = make_app(ROUTES)
    with TestClient(made.app, raise_server_exceptions=False) as client:
        yield SimpleNamespace(client=client, **vars(made))


def post(server, **body):
    return server.client.post("/v1/completions", json={"prompt": "Once", **body})


def chunks(kit, server, **body):
    *data, end = [each for _, each in kit.events_of(post(server, stream=True, **body).text)]
    assert end == "[DONE]"
    return data


def test_an_answer_is_one_object(kit, server):
    server.engine.script = kit.reply(" upon", " a", cached=1, reason="output-limit")
    body = post(server, max_tokens=2).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": " upon a", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert server.engine.requests[0].raw and server.engine.requests[0].prompt.text == "Once"


def test_a_stream_ends_with_a_reason_and_done(kit, server):
    server.engine.script = kit.reply(" upon", 0.05, " a")
    data = chunks(kit, server, stream_options={"include_usage": True})
    assert [c["text"] for each in data for c in each["choices"]] == [" upon", " a", ""]
    assert [c["finish_reason"] for each in data for c in each["choices"]] == [None, None, "stop"]
    assert data[-1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("prompt, expected", [
    ([5, 6, 7], [(5, 6, 7)]), ([[5], [6, 7]], [(5,), (6, 7)]), (["a"], None), (["a", "b"], None),
])
def test_prompts_are_texts_or_ids_one_or_several(kit, server, frontend, prompt, expected):
    server.engine.script = [kit.reply(str(index)) for index in range(len(prompt))]
    choices = post(server, prompt=prompt).json()["choices"]
    expected = expected or [tuple(frontend.tokenizer.encode(text)) for text in prompt]
    assert sorted(each.prompt.token_ids for each in server.engine.requests) == sorted(expected)
    assert [each["index"] for each in choices] == list(range(len(expected)))


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_prompts_are_numbered_through(kit, server, stream):
    """Six prompts, two choices each, where four may run at once."""

    def script(request):
        text = f"{request.prompt.token_ids[0]}/{request.sampling.seed}"
        yield from kit.reply(text, 0.02)(request)

    server.engine.script = script
    body = {"prompt": [[token] for token in range(10, 16)], "n": 2, "seed": 3}
    if stream:
        texts = [""] * 12
        for each in chunks(kit, server, **body):
            for choice in each["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        answer = post(server, **body).json()
        texts = [each["text"] for each in answer["choices"]]
        assert answer["usage"]["prompt_tokens"] == 6 and answer["usage"]["completion_tokens"] == 12
    assert texts == [f"{token}/{seed}" for token in range(10, 16) for seed in (3, 4)]


def test_a_prompt_that_fails_fails_the_request(server):
    response = post(server, prompt=["a", "b" * 5000])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert not server.engine.running and server.service.pending == 0


def scripted(kit, frontend, words, most):
    """Logprobs of the prompt, then each word with its own, one token each."""

    def logprob(token):
        top = tuple((token + i, -1.0 - i) for i in range(most))
        return TokenLogprob(token, -1.0, top)

    def script(request):
        start, *_, end = kit.reply("x", reason="output-limit")(request)
        yield start
        if request.prompt_logprobs is not None:
            first, *rest = request.prompt.token_ids
            told = (TokenLogprob(first, None), *map(logprob, rest))
            yield Logprobs(told, of_prompt=True)
        for word in words:
            [token] = frontend.tokenizer.encode(word, special=True)
            yield Logprobs((logprob(token),))
            if word != "<|im_end|>":
                yield TextDelta("content", word)
        yield end

    return script


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_tells_of_every_token(kit, server, frontend, stream):
    server.engine.script = scripted(kit, frontend, ["a", "b", "<|im_end|>"], 2)
    body = {"prompt": "Oné", "echo": True, "logprobs": 2, "max_tokens": 3}
    if stream:
        found = [c for each in chunks(kit, server, **body) for c in each["choices"]]
    else:
        found = post(server, **body).json()["choices"]
    assert "".join(each["text"] for each in found) == "Onéab"
    columns = {name: [v for each in found for v in each["logprobs"][name]]
               for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    ids = frontend.tokenizer.encode("Oné")
    texts = [frontend.tokenizer.token_bytes(i).decode(errors="replace") for i in ids]
    assert columns["tokens"] == [*texts, "a", "b", "<|im_end|>"]
    assert columns["token_logprobs"] == [None] + [-1.0] * (len(ids) + 2)
    assert columns["top_logprobs"][0] is None
    assert all(max(top.values()) == -1.0 for top in columns["top_logprobs"][1:])
    assert columns["text_offset"][-3:] == [3, 4, 5]
    assert server.engine.requests[-1].prompt_logprobs == 2


def test_echo_of_ids_is_their_text(kit, server, frontend):
    server.engine.script = kit.reply("!")
    ids = frontend.tokenizer.encode("Hello")
    assert post(server, prompt=ids, echo=True).json()["choices"][0]["text"] == "Hello!"
    assert server.engine.requests[-1].prompt_logprobs is None


def test_scoring_alone_makes_no_token(kit, server, frontend):
    """``max_tokens`` 0."""

    def script(request):
        assert request.max_tokens == 0
        yield from (each for each in scripted(kit, frontend, [], 1)(request)
                    if not isinstance(each, TextDelta | Finished))
        *_, end = kit.reply(reason="output-limit")(request)
        yield end

    server.engine.script = script
    body = post(server, prompt="abc", echo=True, logprobs=1, max_tokens=0).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0]
    assert body["usage"]["completion_tokens"] == 0


def test_impossible_tokens_have_a_number_for_their_logprob(kit, server):
    def script(request):
        start, *_, end = kit.reply("x")(request)
        assert isinstance(start, Started)
        yield Logprobs((TokenLogprob(70, float("-inf"), ((71, 0.0),)),))
        yield end

    server.engine.script = script
    found = post(server, logprobs=1).json()["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [-9999.0]
