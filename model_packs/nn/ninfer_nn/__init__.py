"""Blocks by mathematics, built of bound ops; a step of theirs allocates nothing.

Constructors take a `BuildContext` and logical parameter names. Buffers are shared by name: the
layers of a model run one after another.
"""

from ninfer_nn.attention import (
    Attention,
    GatedAttention,
    IndexedAttention,
    indexed_attention_states,
)
from ninfer_nn.block_index import IndexSizes
from ninfer_nn.channel_delta_net import ChannelDeltaNet, channel_delta_net_states
from ninfer_nn.delta_net import GatedDeltaNet, delta_net_states
from ninfer_nn.gated_streams import GatedStreams
from ninfer_nn.latent_attention import LatentAttention, latent_attention_states
from ninfer_nn.linear import Embedding, Linear, OutputHead
from ninfer_nn.mlp import GatedProduct, SwiGLU
from ninfer_nn.moe import SparseMoE
from ninfer_nn.ngram_embedding import NgramEmbedding, NgramHash, ngram_states
from ninfer_nn.norm import RMSNorm
from ninfer_nn.predictor import PredictorInput, PredictorOutput
from ninfer_nn.rope import (
    Rope,
    mrope_axes,
    rope_frequencies,
    rope_tables,
    yarn_frequencies,
    yarn_scale,
)
from ninfer_nn.sinkhorn_streams import SinkhornStreams, StreamMean

__all__ = [
    "Attention", "ChannelDeltaNet", "Embedding", "GatedAttention", "GatedDeltaNet",
    "GatedProduct", "GatedStreams", "IndexSizes", "IndexedAttention", "LatentAttention",
    "Linear", "NgramEmbedding", "NgramHash", "OutputHead", "PredictorInput", "PredictorOutput",
    "RMSNorm", "Rope", "SinkhornStreams", "SparseMoE", "StreamMean", "SwiGLU",
    "channel_delta_net_states", "delta_net_states", "indexed_attention_states",
    "latent_attention_states", "mrope_axes", "ngram_states", "rope_frequencies", "rope_tables",
    "yarn_frequencies", "yarn_scale",
]
