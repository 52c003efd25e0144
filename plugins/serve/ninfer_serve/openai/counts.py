"""Token counts and times as OpenAI's dialects write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninfer_core.engine.request import Finished


def usage_of(prompts: Sequence[Sequence[Finished]], reasoning_tokens: int) -> dict[str, Any]:
    """Of all answers to some prompts; a prompt counts once, as its first answer had it."""
    first = [answers[0] for answers in prompts]
    read = sum(each.usage.prompt_tokens for each in first)
    written = sum(each.usage.output_tokens for answers in prompts for each in answers)
    return {
        "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(each.reuse.num_tokens for each in first)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def timings_of(finished: Finished) -> dict[str, float]:
    """Milliseconds and rates under llama.cpp's names. The first token is of the prompt's time, so
    the rate of the others is without it."""
    timings, usage = finished.timings, finished.usage
    found = {
        "queue_ms": timings.queue_s * 1000,
        "cache_n": finished.reuse.num_tokens,
        **_phase("prompt", timings.prefill_tokens, timings.prefill_tokens, timings.prefill_s),
        **_phase("predicted", usage.output_tokens, timings.decode_tokens, timings.decode_s),
    }
    if usage.rounds:
        found |= {"draft_n": usage.drafted_tokens, "draft_n_accepted": usage.accepted_tokens}
    return found


def _phase(name: str, count: int, timed: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count, f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / timed if timed else 0.0,
        f"{name}_per_second": timed / seconds if seconds > 0 else 0.0,
    }
