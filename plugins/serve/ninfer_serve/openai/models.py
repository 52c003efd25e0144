"""The model that is served, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from ninfer_serve.errors import model_not_found
from ninfer_serve.service import ModelFacts


def model_of(facts: ModelFacts) -> dict[str, Any]:
    """With the most tokens of a request as vLLM names them."""
    return {"id": facts.name, "object": "model", "created": facts.created, "owned_by": "ninfer",
            "max_model_len": facts.max_context}


def find_model(facts: ModelFacts, name: str) -> dict[str, Any]:
    """Raises `HttpError` for a name that is not served."""
    if name != facts.name:
        raise model_not_found(name, facts.name)
    return model_of(facts)
