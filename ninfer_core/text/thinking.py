"""Whether and how much a model is asked to reason."""

from __future__ import annotations

from ninfer_core.api import PreparedPrompt, PromptOptions, RequestError


def wanted_thinking(options: PromptOptions) -> bool | None:
    """Whether an answer is to begin with reasoning; None leaves it to the model.

    :raises RequestError: if the effort says otherwise than ``thinking``.
    """
    if options.effort is None:
        return options.thinking
    wanted = options.effort not in ("none", "minimal")
    if options.thinking not in (None, wanted):
        state = "on" if options.thinking else "off"
        raise RequestError("contradicting options", where="reasoning effort",
                           why=f"thinking is {state} and the effort is {options.effort}",
                           fix="give one of the two")
    return wanted


def check_thinking(options: PromptOptions, prompt: PreparedPrompt) -> None:
    """Raise `RequestError`, naming the option, unless the prompt begins the answer as wanted."""
    wanted = wanted_thinking(options)
    if wanted not in (None, prompt.reasoning_open):
        option = "thinking" if options.effort is None else "reasoning effort"
        raise RequestError("the model cannot be asked for that", where=option,
                           why=f"it {'never' if wanted else 'always'} reasons before it answers")
