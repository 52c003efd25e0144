"""Every parameter: its name here, its shape, and where a Hugging Face checkpoint has it."""

from collections.abc import Iterator
from typing import NamedTuple

from ninfer_core.api import ParameterSpec
from ninfer_pack_gpt2.config import Gpt2Config


class Parameter(NamedTuple):
    """``source`` is its tensor in a checkpoint (projections are stored (in, out) there), and
    ``begin`` its first row of that; ``parent`` stores it with others that one product reads."""

    spec: ParameterSpec
    source: str
    begin: int = 0
    parent: str = ""


def parameters(config: Gpt2Config) -> Iterator[Parameter]:
    """Every parameter, in the order in which a step reads them."""
    hidden, inner = config.n_embd, config.n_inner
    table = ParameterSpec("text/token_embedding", (config.vocab_size, hidden), "table")
    positions = ParameterSpec("text/position_embedding", (config.n_positions, hidden), "table")
    yield from (Parameter(table, "wte.weight"), Parameter(positions, "wpe.weight"))
    for layer in range(config.n_layer):
        here, theirs = f"text/layers/{layer}", f"h.{layer}"
        yield from _module(f"{here}/input_norm", f"{theirs}.ln_1", (hidden,))
        for index, part in enumerate(("query", "key", "value")):
            name, fused = f"{here}/attention/{part}", f"{theirs}.attn.c_attn"
            parent = f"{here}/attention/query_key_value"
            yield from _module(name, fused, (hidden, hidden), index * hidden, parent)
        yield from _module(f"{here}/attention/output", f"{theirs}.attn.c_proj", (hidden, hidden))
        yield from _module(f"{here}/mlp_norm", f"{theirs}.ln_2", (hidden,))
        yield from _module(f"{here}/mlp/up", f"{theirs}.mlp.c_fc", (inner, hidden))
        yield from _module(f"{here}/mlp/down", f"{theirs}.mlp.c_proj", (hidden, inner))
    yield from _module("text/final_norm", "ln_f", (hidden,))
    yield Parameter(ParameterSpec("text/output_head", table.shape, tied_to=table.name), "")


def _module(
    here: str, theirs: str, shape: tuple[int, ...], begin: int = 0, parent: str = ""
) -> Iterator[Parameter]:
    """Weight and bias of a norm ``(hidden,)`` or of a projection ``(out, in)``."""
    weight = ParameterSpec(f"{here}/weight", shape, "projection" if len(shape) == 2 else "direct")
    yield Parameter(weight, f"{theirs}.weight", begin, parent)
    yield Parameter(ParameterSpec(f"{here}/bias", shape[:1], "direct"), f"{theirs}.bias", begin)
