"""Blocks by mathematics, built of bound ops; a step of theirs allocates nothing.

Constructors take a `BuildContext` and logical parameter names. Buffers are shared by name: the
layers of a model run one after another.
"""

from ninfer_core.nn.attention import Attention
from ninfer_core.nn.linear import Embedding, Linear, OutputHead
from ninfer_core.nn.mlp import SwiGLU
from ninfer_core.nn.norm import RMSNorm
from ninfer_core.nn.rope import rope_frequencies, rope_tables

__all__ = [
    "Attention", "Embedding", "Linear", "OutputHead", "RMSNorm", "SwiGLU",
    "rope_frequencies", "rope_tables",
]
