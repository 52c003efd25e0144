"""From the body of a text completion to requests, or to a refusal that names the place."""

import pytest

from ninfer_core.api import RequestError
from ninfer_serve.members import Members
from ninfer_serve.openai.completion_request import read_completion
from ninfer_serve.service import ModelFacts

FACTS = ModelFacts("tiny", 0, 4096, 4, 400)


def read(**body):
    return read_completion(Members({"prompt": "Once", **body}), FACTS)


def test_text_is_raw_and_echo_asks_for_the_prompts_logprobs():
    [found] = read(logprobs=3, echo=True).serve
    assert found.raw and (found.logprobs, found.prompt_logprobs) == (3, 3)
    [found] = read(logprobs=0).serve
    assert (found.logprobs, found.prompt_logprobs) == (0, None)


@pytest.mark.parametrize("body, where", [
    ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": None}, "prompt"),
    ({"prompt": [""]}, "prompt[0]"), ({"prompt": [[]]}, "prompt[0]"), ({"prompt": 3}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt[0]"), ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"), ({"prompt": [[400]]}, "prompt[0][0]"),
    ({"prompt": "a" * ((1 << 24) + 1)}, "prompt"), ({"prompt": ["a"] * 1025}, "prompt"),
    ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"), ({"max_tokens": -1},
                                                                       "max_tokens"),
    ({"model": "other"}, "model"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
])
def test_what_is_wrong_is_named(body, where):
    with pytest.raises(RequestError) as caught:
        read(**body)
    assert caught.value.where == where


def test_best_of_as_many_as_are_asked_for_is_all():
    assert read(n=2, best_of=2).serve[0].num_choices == 2
