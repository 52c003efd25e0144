"""The model that is served, in OpenAI's form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ninfer_serve.errors import model_not_found
from ninfer_serve.service import ModelFacts


def model_of(facts: ModelFacts) -> dict[str, Any]:
    """With the most tokens of a request as vLLM names them, and what Anthropic's SDK reads."""
    return {
        "id": facts.name, "object": "model", "created": facts.created, "owned_by": "ninfer",
        "max_model_len": facts.max_context, "type": "model", "display_name": facts.name,
        "created_at": datetime.fromtimestamp(facts.created, UTC).isoformat(),
        "max_input_tokens": facts.max_context,
    }


def find_model(facts: ModelFacts, name: str) -> dict[str, Any]:
    """Raises `HttpError` for a name that is not served."""
    if name != facts.name:
        raise model_not_found(name, facts.name)
    return model_of(facts)
