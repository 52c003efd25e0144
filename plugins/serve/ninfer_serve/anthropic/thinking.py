"""Whether and how much a request asks a model to think."""

from __future__ import annotations

from attrs import frozen

from ninfer_core.api import Frontend, PromptOptions, ReasoningEffort, RequestError
from ninfer_serve.members import Members, refuse

KINDS = ("adaptive", "between_tools", "disabled", "enabled")
EFFORTS: dict[str, ReasoningEffort] = {
    "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max",
}
LEAST_BUDGET = 1024


@frozen
class Abilities:
    """What a model's template can be asked for.

    :ivar think: to begin answers with thinking. :ivar skip: to begin them without.
    :ivar keep: to leave the thinking of earlier turns in the prompt.
    """

    think: bool
    skip: bool
    keep: bool

    @classmethod
    def of(cls, frontend: Frontend) -> Abilities:
        """Found by trying."""

        def takes(options: PromptOptions) -> bool:
            try:
                frontend.prepare([{"role": "user", "content": "."}], options=options)
            except RequestError:
                return False
            return True

        return cls(
            takes(PromptOptions(thinking=True)), takes(PromptOptions(thinking=False)),
            takes(PromptOptions(preserve_thinking=True)),
        )


@frozen
class Thinking:
    """What a request comes to. :ivar budget: most tokens of it."""

    options: PromptOptions
    budget: int | None = None


def read_thinking(body: Members, abilities: Abilities, *, prefilled: bool) -> Thinking:
    """What ``thinking``, ``output_config.effort`` and ``context_management`` come to.

    A request that says nothing of it is answered without thinking, as far as the model can; one
    that leaves it to the model, or gives an effort alone, is answered with.

    :param prefilled: whether the answer goes on from a text, and so has no place for thinking.
    :raises RequestError: for contradictions, and a display of thinking that hides it.
    """
    given = body.object("thinking")
    kind = given.one_of("type", KINDS) if given else None
    if given and kind is None:
        refuse(given.place("type"), f"one of {', '.join(KINDS)}", None)
    if given and given.one_of("display", ("summarized", "omitted")) == "omitted":
        raise RequestError("thinking cannot be left out of the answer",
                           where=given.place("display"), fix="ask for summarized, or disable it")
    if prefilled and kind == "enabled":
        raise RequestError("an answer that goes on from a text has no thinking", where="thinking",
                           fix="disable it, or end with a message of the user")
    effort = _effort(body)
    thinks = False if prefilled else _thinks(kind, effort, abilities)
    options = PromptOptions(
        thinking=thinks, effort=effort if thinks else None,
        preserve_thinking=_keeps(body, abilities),
    )
    return Thinking(options, _budget(given, body) if given and kind == "enabled" else None)


def _thinks(kind: str | None, effort: str | None, abilities: Abilities) -> bool | None:
    if kind == "enabled":
        return True
    if kind == "disabled":
        return False
    if kind or effort:
        return abilities.think or None
    return False if abilities.skip else None


def _effort(body: Members) -> ReasoningEffort | None:
    config = body.object("output_config")
    effort = config.one_of("effort", EFFORTS) if config else None
    return EFFORTS[effort] if effort else None


def _budget(given: Members, body: Members) -> int:
    budget = given.integer("budget_tokens", LEAST_BUDGET)
    if budget is None:
        refuse(given.place("budget_tokens"), f"an integer, {LEAST_BUDGET} or more", None)
    most = body.integer("max_tokens", 0)
    if most is not None and budget >= most:
        raise RequestError("the thinking may take all of the answer",
                           where=given.place("budget_tokens"), why=f"{budget} of {most} tokens",
                           fix="raise max_tokens, or lower the budget")
    return budget


def _keeps(body: Members, abilities: Abilities) -> bool | None:
    """True for a client that wants all earlier thinking kept, from a model that can do both."""
    management = body.object("context_management")
    for edit in management.objects("edits") if management else ():
        if edit.text("type") == "clear_thinking_20251015":
            keep = edit.values.get("keep")
            if abilities.keep and keep in ("all", {"type": "all"}):
                return True
    return None
