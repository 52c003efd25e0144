"""Blocks by mathematics, built of bound ops; a step of theirs allocates nothing.

Constructors take a `BuildContext` and logical parameter names. Buffers are shared by name: the
layers of a model run one after another.
"""

from ninfer_core.nn.attention import Attention, GatedAttention
from ninfer_core.nn.delta_net import GatedDeltaNet, delta_net_states
from ninfer_core.nn.linear import Embedding, Linear, OutputHead
from ninfer_core.nn.mlp import GatedProduct, SwiGLU
from ninfer_core.nn.moe import SparseMoE
from ninfer_core.nn.norm import RMSNorm
from ninfer_core.nn.rope import Rope, mrope_axes, rope_frequencies, rope_tables

__all__ = [
    "Attention", "Embedding", "GatedAttention", "GatedDeltaNet", "GatedProduct", "Linear",
    "OutputHead", "RMSNorm", "Rope", "SparseMoE", "SwiGLU", "delta_net_states", "mrope_axes",
    "rope_frequencies", "rope_tables",
]
