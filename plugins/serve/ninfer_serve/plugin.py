"""What this distribution registers. Imports neither torch nor the server."""

from __future__ import annotations

from ninfer_core.api import ProtocolSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_protocols() -> list[ProtocolSpec]:
    return [
        ProtocolSpec("openai", "ninfer_serve.openai.routes:routes"),
        ProtocolSpec("responses", "ninfer_serve.responses.routes:routes"),
        ProtocolSpec("anthropic", "ninfer_serve.anthropic.routes:routes"),
        ProtocolSpec("tokens", "ninfer_serve.tokens:routes"),
        ProtocolSpec("metrics", "ninfer_serve.metrics.routes:routes"),
        ProtocolSpec("page", "ninfer_serve.page.routes:routes"),
    ]
