"""What chat and text completions have in common: the model, how tokens are drawn, where it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ninfer_serve.errors import HttpError, model_not_found
from ninfer_serve.members import Members, refuse

MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1
"""Larger limits mean the same: all that fit."""

Unserved = Mapping[str, tuple[tuple[Any, ...], str]]
"""By name, values that change nothing, and what to do instead of giving others."""

UNSERVED: Unserved = {
    "best_of": ((1,), "use n"),
    "grammar": ((), "use structured_outputs.grammar"),
    **{
        f"guided_{kind}": ((), f"use structured_outputs.{kind}")
        for kind in ("choice", "grammar", "json", "regex")
    },
    "json_schema": ((), "use response_format"),
    "logit_bias": ((), "use structured_outputs.choice or .regex for what may be said"),
    "prompt_logprobs": ((), "use /v1/completions with echo and logprobs"),
}
"""Parameters that would have to change the answer."""


@frozen
class View:
    """How a client wants to see an answer.

    :ivar stream: as it comes. :ivar usage: with a last chunk of token counts.
    :ivar progress: with how much of the prompt has been read.
    """

    stream: bool
    usage: bool
    progress: bool


def read_view(body: Members) -> View:
    options = body.object("stream_options")
    usage = options is not None and bool(options.flag("include_usage"))
    return View(bool(body.flag("stream")), usage, bool(body.flag("return_progress")))


def check_model(body: Members, served: str) -> None:
    """Raise `RequestError` unless the model is the one that is served, or not named at all."""
    if (name := body.text("model")) not in (None, served):
        raise model_not_found(str(name), served)


def check_unserved(body: Members, unserved: Unserved) -> None:
    """Raise `RequestError` for a parameter that could not have the effect it asks for."""
    for name, (neutral, fix) in unserved.items():
        value = body.values.get(name)
        is_zero = isinstance(value, dict) and not any(value.values())
        if value and not is_zero and value not in neutral:
            raise HttpError(400, "unsupported_parameter", f"{name} is not served", where=name,
                            fix=fix)


def read_generation(body: Members) -> dict[str, Any]:
    """Members of `ServeRequest` that both kinds of completion read alike."""
    return {
        "sampling": _sampling(body), "stop": _stops(body),
        "stop_token_ids": frozenset(_ids(body, "stop_token_ids")),
        "ignore_eos": bool(body.flag("ignore_eos")), "max_tokens": _max_tokens(body),
        "min_tokens": min(body.integer("min_tokens", 0) or 0, MAX_TOKENS),
        "num_choices": body.integer("n", 1) or 1,
        "use_cache": body.flag("cache_prompt") is not False,
    }


def _sampling(body: Members) -> dict[str, Any]:
    found: dict[str, Any] = {
        "temperature": body.number("temperature", 0, 2), "top_p": body.number("top_p", 0, 1),
        "min_p": body.number("min_p", 0, 1),
        "presence_penalty": body.number("presence_penalty", -2, 2),
        "frequency_penalty": body.number("frequency_penalty", -2, 2),
        "repetition_penalty": body.number("repetition_penalty", 0, 1000),
    }
    if (top_k := body.integer("top_k", -1, 2**31 - 1)) is not None:
        found["top_k"] = max(top_k, 0)  # clients write -1 for all, too
    if (seed := body.integer("seed", -(2**63), 2**64 - 1)) is not None:
        found["seed"] = seed % 2**64
    return {name: value for name, value in found.items() if value is not None}


def _stops(body: Members) -> tuple[str, ...]:
    given = body.values.get("stop")
    stops = [given] if isinstance(given, str) else body.array("stop")
    if len(stops) > MAX_STOPS:
        refuse("stop", f"at most {MAX_STOPS} strings", stops)
    for index, each in enumerate(stops):
        if not isinstance(each, str) or not each:
            refuse(f"stop[{index}]", "a string that is not empty", each)
    return tuple(stops)


def _ids(body: Members, name: str) -> list[int]:
    ids = body.array(name)
    for index, each in enumerate(ids):
        if type(each) is not int or not 0 <= each <= MAX_TOKENS:
            refuse(f"{name}[{index}]", "a token id", each)
    return ids


def _max_tokens(body: Members) -> int | None:
    """The newer name's, or the older one's; None for all that fit."""
    found = [body.integer(name, 0) for name in ("max_completion_tokens", "max_tokens")]
    given = [each for each in found if each is not None]
    if len(set(given)) > 1:
        refuse("max_tokens", "left out beside another max_completion_tokens", given[1])
    return min(given[0], MAX_TOKENS) if given else None
