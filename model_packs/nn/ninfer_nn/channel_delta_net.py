"""Kimi Delta Attention: a delta network with a decay for each component of a key."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer_core.api import BuildContext, SlotStateSpec
from ninfer_core.state.step import StepBatch
from ninfer_nn.columns import columns
from ninfer_nn.delta_net import NORMALISE_EPS
from ninfer_nn.linear import Linear

_CONVOLUTION, _STATE = "kda_convolution", "kda_state"


def channel_delta_net_states(
    num_layers: int, *, num_heads: int, head_dim: int, taps: int
) -> tuple[SlotStateSpec, ...]:
    """What a sequence owns for so many `ChannelDeltaNet` layers."""
    width = num_heads * head_dim
    return (
        SlotStateSpec(_CONVOLUTION, num_layers, (taps - 1, 3 * width), (3 * width,)),
        SlotStateSpec(
            _STATE, num_layers, (num_heads, head_dim, head_dim), (3 * width + num_heads,)
        ),
    )


class ChannelDeltaNet:
    """A convolution along the sequence, the delta rule with decays by channel, and a gated norm of
    what it reads (Kimi Team, Kimi Linear, 2025, section 3; as in GLM-5.3-Flash), added to the
    residual stream.

    :param name: of its parameters: ``query``, ``key``, ``value``, ``beta``, ``convolution``
        ``[taps, C]``, ``decay_down``, ``decay_up``, ``gate_down``, ``gate_up``, ``a_log``,
        ``dt_bias``, ``norm`` ``[D]`` and ``output``.
    :param layer: ordinal among the layers of `channel_delta_net_states`.
    :param head_dim: of keys and values, and of what ``decay_down`` and ``gate_down`` give.
    :param eps: of the gated norm. :param lower_bound: of logarithms of decays.
    :param adds: False: written instead of added.
    """

    def __init__(
        self, context: BuildContext, name: str, *, layer: int, num_heads: int, head_dim: int,
        eps: float, lower_bound: float, adds: bool = True,
    ) -> None:
        width = num_heads * head_dim
        parts = ("query", "key", "value", "beta", "decay_down", "gate_down")
        self._project = Linear(context, *[f"{name}/{part}" for part in parts], out="kda_projected")
        widths = [3 * width, num_heads, head_dim, head_dim]
        self._projected = columns(context, "kda_projected", widths)
        self._decay = Linear(context, f"{name}/decay_up", out="kda_decays")
        self._gate = Linear(context, f"{name}/gate_up", out="kda_gates")
        self._convolve = context.bind(
            "causal_conv1d", sizes={"dilation": 1}, planes=context.state(_CONVOLUTION, layer),
            weight=context.tensor(f"{name}/convolution", dtype=torch.float32),
        )
        self._convolved = context.buffer("kda_convolved", 3 * width)
        self._heads = columns(context, "kda_convolved", [width] * 3)
        self._mix = context.bind(
            "channel_delta_rule",
            sizes={
                "num_heads": num_heads, "key_dim": head_dim, "value_dim": head_dim,
                "eps": NORMALISE_EPS, "lower_bound": lower_bound,
            },
            planes=context.state(_STATE, layer),
            a_log=context.tensor(f"{name}/a_log", dtype=torch.float32),
            dt_bias=context.tensor(f"{name}/dt_bias", dtype=torch.float32),
        )
        self._mixed = context.buffer("kda_mixed", width)
        self._norm = context.bind(
            "gated_rmsnorm", weight=context.tensor(f"{name}/norm"),
            sizes={"eps": eps, "num_heads": num_heads, "activation": "sigmoid"},
        )
        output = Linear(context, f"{name}/output")
        self._give = output.add_to if adds else output.write

    def __call__(self, x: Tensor, batch: StepBatch, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        count = x.shape[0]
        self._project(x)
        unmixed, beta, decay, gate = self._projected(count)
        self._convolve(unmixed, batch, self._convolved(count))
        mixed = self._mix(
            *self._heads(count), self._decay(decay), beta, batch, self._mixed(count)
        )
        self._give(stream, self._norm(mixed, self._gate(gate), mixed))
