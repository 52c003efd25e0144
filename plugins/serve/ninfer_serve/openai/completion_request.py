"""The body of a text completion."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from ninfer_core.text.template import MAX_CHARS
from ninfer_serve.members import Members, refuse
from ninfer_serve.openai.grammars import read_grammar
from ninfer_serve.openai.options import (
    MAX_LOGPROBS,
    UNSERVED,
    Unserved,
    View,
    check_model,
    check_unserved,
    read_generation,
    read_view,
)
from ninfer_serve.serve_request import ServeRequest
from ninfer_serve.service import ModelFacts

MAX_PROMPTS = 1024
COMPLETION_UNSERVED: Unserved = {
    **UNSERVED, "suffix": ((), "write the prompt as the model wants it"),
}

Prompt = str | tuple[int, ...]


@frozen
class CompletionRequest:
    """What a body asks for: a request for each prompt.

    :ivar echo: whether the text begins with the prompt.
    """

    serve: tuple[ServeRequest, ...]
    view: View
    echo: bool


def read_completion(body: Members, facts: ModelFacts) -> CompletionRequest:
    """Check everything that can be checked without the model; unknown members are left alone.

    :raises RequestError: naming the member.
    """
    check_model(body, facts.name)
    generation = read_generation(body)
    check_unserved(body, {
        **COMPLETION_UNSERVED, "best_of": ((generation["num_choices"],), "let it equal n"),
    })
    logprobs, echo = body.integer("logprobs", 0, MAX_LOGPROBS), bool(body.flag("echo"))
    one = ServeRequest(
        raw=True, grammar=read_grammar(body), logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None, **generation,
    )
    prompts = _prompts(body.values.get("prompt"), facts.vocab_size)
    return CompletionRequest(
        tuple(evolve(one, prompt=each) for each in prompts), read_view(body), echo
    )


def _prompts(given: Any, vocab_size: int) -> list[Prompt]:
    """One text, the ids of one, or an array of such."""
    if not isinstance(given, list) or (given and all(type(each) is int for each in given)):
        return [_prompt(given, "prompt", vocab_size)]
    if not 0 < len(given) <= MAX_PROMPTS:
        refuse("prompt", f"1 to {MAX_PROMPTS} prompts", given)
    return [_prompt(each, f"prompt[{i}]", vocab_size) for i, each in enumerate(given)]


def _prompt(given: Any, place: str, vocab_size: int) -> Prompt:
    if isinstance(given, str) and given:
        if len(given) > MAX_CHARS:
            refuse(place, f"at most {MAX_CHARS} characters", given)
        return given
    if not isinstance(given, list) or not given:
        refuse(place, "a text or token ids, and not empty", given)
    for index, each in enumerate(given):
        if type(each) is not int or not 0 <= each < vocab_size:
            refuse(f"{place}[{index}]", f"a token id below {vocab_size}", each)
    return tuple(given)
