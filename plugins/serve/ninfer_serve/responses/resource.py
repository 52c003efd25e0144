"""The object that the Responses API calls a response."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_core.api import ReasoningTokens, SamplingParams
from ninfer_core.engine.request import Finished
from ninfer_serve.reasoning import reasoning_tokens
from ninfer_serve.responses.items import Item
from ninfer_serve.responses.request import ResponseRequest

Resource = dict[str, Any]
_REPEATED = ("max_output_tokens", "max_tool_calls", "prompt_cache_key", "safety_identifier", "user")


def new_resource(
    request: ResponseRequest, response_id: str, model: str, sampling: SamplingParams
) -> Resource:
    """A response in progress.

    :param sampling: what its tokens are drawn with.
    """
    numbers = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    return {
        "id": response_id, "object": "response", "created_at": int(time.time()),
        "status": "in_progress", "background": False, "completed_at": None,
        "error": None, "incomplete_details": None,
        "instructions": request.instructions, "model": model, "output": [],
        "previous_response_id": request.previous,
        "parallel_tool_calls": request.members.get("parallel_tool_calls") is not False,
        "reasoning": {"effort": request.serve.options.effort, "summary": None},
        "service_tier": "default", "store": request.store,
        **{name: getattr(sampling, name) for name in numbers},
        "text": {"format": _format(request.members)},
        "tool_choice": request.members.get("tool_choice") or "auto",
        "tools": [_tool(each) for each in request.members.get("tools") or ()],
        "top_logprobs": request.serve.logprobs or 0, "truncation": "disabled", "usage": None,
        "metadata": request.members.get("metadata") or {},
        **{name: request.members.get(name) for name in _REPEATED},
    }


def ended(
    resource: Resource, finished: Finished, marks: ReasoningTokens | None, *, reasoning_open: bool
) -> Resource:
    """The response as it ended, completed or incomplete; its output is not in it yet."""
    is_whole = finished.reason in ("stop-token", "stop-string")
    return {
        **resource, "status": "completed" if is_whole else "incomplete",
        "completed_at": int(time.time()) if is_whole else None,
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "usage": _usage(finished, reasoning_tokens(finished.token_ids, marks, reasoning_open)),
    }


def failed(resource: Resource, items: Sequence[Item], code: str, message: str) -> Resource:
    """The response as it failed."""
    return {**resource, "status": "failed", "output": [*items],
            "error": {"code": code, "message": message}}


def _usage(finished: Finished, reasoning: int) -> dict[str, Any]:
    usage = finished.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": finished.reuse.num_tokens, "cache_write_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _format(members: Mapping[str, Any]) -> dict[str, Any]:
    given = (members.get("text") or {}).get("format") or {"type": "text"}
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    return {"name": "schema", "description": None, "strict": False, **given}


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as it was declared, with what a function may leave out."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}
