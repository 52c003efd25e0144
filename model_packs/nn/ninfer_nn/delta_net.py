"""Gated delta networks: linear attention whose state is a matrix for each head."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ninfer_core.api import BuildContext, SlotStateSpec
from ninfer_core.state.step import StepBatch
from ninfer_nn.columns import columns
from ninfer_nn.linear import Linear

_CONVOLUTION, _STATE = "gdn_convolution", "gdn_state"

NORMALISE_EPS = 1e-6
"""Of queries and keys; the models of this kind have no setting for it."""


def delta_net_states(
    num_layers: int, *, num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int,
    taps: int,
) -> tuple[SlotStateSpec, ...]:
    """What a sequence owns for so many `GatedDeltaNet` layers."""
    keys, values = num_key_heads * key_dim, num_value_heads * value_dim
    channels = 2 * keys + values
    return (
        SlotStateSpec(_CONVOLUTION, num_layers, (taps - 1, channels), (channels,)),
        SlotStateSpec(
            _STATE, num_layers, (num_value_heads, key_dim, value_dim),
            (keys + values + 2 * num_value_heads,),
        ),
    )


class GatedDeltaNet:
    """A convolution along the sequence, the gated delta rule, and a gated norm of what it reads
    (Yang, Kautz and Hatamizadeh, 2024; as in Qwen3-Next and Qwen3.5).

    :param name: of its parameters: ``query``, ``key``, ``value``, ``z`` (the gate of the norm),
        ``a_projection`` and ``b_projection`` (decays and betas), ``convolution`` ``[taps, C]``,
        ``a_log``, ``dt_bias``, ``norm`` ``[Dv]`` and ``output``.
    :param layer: ordinal among the layers of `delta_net_states`.
    :param key_dim, value_dim: of a head.
    :param eps: of the gated norm. :param activation: of its gate.
    :param adds: to the residual stream; else the result is written there.
    """

    def __init__(
        self, context: BuildContext, name: str, *, layer: int, num_key_heads: int,
        num_value_heads: int, key_dim: int, value_dim: int, eps: float,
        activation: Literal["silu", "sigmoid"] = "silu", adds: bool = True,
    ) -> None:
        keys, values = num_key_heads * key_dim, num_value_heads * value_dim
        parts = [f"{name}/{part}" for part in ("query", "key", "value", "z")]
        gates = f"{name}/a_projection", f"{name}/b_projection"
        self._project = Linear(context, *parts, apart=gates, out="gdn_projected")
        widths = [2 * keys + values, values, num_value_heads, num_value_heads]
        self._projected = columns(context, "gdn_projected", widths)
        self._convolve = context.bind(
            "causal_conv1d", weight=context.tensor(f"{name}/convolution"),
            planes=context.state(_CONVOLUTION, layer),
        )
        self._convolved = context.buffer("gdn_convolved", 2 * keys + values)
        self._heads = columns(context, "gdn_convolved", [keys, keys, values])
        self._mix = context.bind(
            "gated_delta_rule",
            sizes={
                "num_key_heads": num_key_heads, "num_value_heads": num_value_heads,
                "key_dim": key_dim, "value_dim": value_dim, "eps": NORMALISE_EPS,
            },
            planes=context.state(_STATE, layer),
            a_log=context.tensor(f"{name}/a_log", dtype=torch.float32),
            dt_bias=context.tensor(f"{name}/dt_bias", dtype=torch.float32),
        )
        self._mixed = context.buffer("gdn_mixed", values)
        self._norm = context.bind(
            "gated_rmsnorm", weight=context.tensor(f"{name}/norm"),
            sizes={"eps": eps, "num_heads": num_value_heads, "activation": activation},
        )
        output = Linear(context, f"{name}/output")
        self._put = output.add_to if adds else output.write

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        count = x.shape[0]
        self._project(x)
        unmixed, z, *gates = self._projected(count)
        self._convolve(unmixed, batch, self._convolved(count))
        mixed = self._mix(*self._heads(count), *gates, batch, self._mixed(count))
        self._put(stream, self._norm(mixed, z, mixed))
