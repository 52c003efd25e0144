"""From a request in no dialect to what the engine is asked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from ninfer_core.api import ContextLengthError, Frontend, PreparedPrompt, PromptOptions
from ninfer_core.engine.request import GenerationRequest
from ninfer_serve.serve_request import ServeRequest


@frozen
class RequestDefaults:
    """What the server decides for requests that do not.

    :ivar sampling: members of `SamplingParams`, over the model's own.
    :ivar max_tokens: None for all that fit. :ivar deadline_s: at most, whatever the request says.
    """

    sampling: Mapping[str, Any] = field(factory=dict)
    options: PromptOptions = PromptOptions()
    max_tokens: int | None = None
    thinking_budget: int | None = None
    deadline_s: float | None = None

    def prompt_options(self, given: PromptOptions) -> PromptOptions:
        """The client's, and the server's for what it leaves open."""
        ours = self.options
        if given.thinking is None and given.effort is None:
            given = evolve(given, thinking=ours.thinking, effort=ours.effort)
        if given.preserve_thinking is None:
            given = evolve(given, preserve_thinking=ours.preserve_thinking)
        return given

    def generations(
        self, request: ServeRequest, prompt: PreparedPrompt, frontend: Frontend, max_context: int
    ) -> list[GenerationRequest]:
        """One for each choice, whose seeds differ.

        :raises RequestError: for values that make no sense.
        :raises ContextLengthError: if the prompt is too long for any output.
        """
        sampling = evolve(frontend.sampling_defaults(prompt), **{
            "seed": secrets.randbits(63), **self.sampling, **request.sampling,
        })
        one = GenerationRequest(
            prompt=prompt, sampling=sampling,
            max_tokens=self._max_tokens(request, len(prompt.token_ids), max_context),
            stop=request.stop, stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos, deadline_s=self._deadline_s(request), raw=request.raw,
            min_tokens=request.min_tokens,
            thinking_budget=self._thinking_budget(request, frontend),
            use_cache=request.use_cache, grammar=request.grammar, calls=request.calls,
            logprobs=request.logprobs, prompt_logprobs=request.prompt_logprobs,
        )
        seeds = ((sampling.seed + index) % 2**64 for index in range(request.num_choices))
        return [evolve(one, sampling=evolve(sampling, seed=seed)) for seed in seeds]

    def _max_tokens(self, request: ServeRequest, length: int, most: int) -> int:
        wanted = self.max_tokens if request.max_tokens is None else request.max_tokens
        room = most - length
        if room < (wanted != 0):
            why = f"{length} tokens > {most - 1} maximum, as an output has to follow"
            raise ContextLengthError("prompt is too long", why=why)
        return room if wanted is None else min(wanted, room)

    def _thinking_budget(self, request: ServeRequest, frontend: Frontend) -> int | None:
        if request.thinking_budget is None and frontend.reasoning_tokens is not None:
            return self.thinking_budget
        return request.thinking_budget

    def _deadline_s(self, request: ServeRequest) -> float | None:
        limits = (request.deadline_s, self.deadline_s)
        return min((each for each in limits if each is not None), default=None)
