"""What tells one GPT-2 from another, and which models are one. Imports no torch."""

from attrs import Factory, asdict, frozen

from ninfer_core.api import ArtifactError, Claim, ModelDescription
from ninfer_core.artifact.schema import read_config

ARCHITECTURE = "GPT2LMHeadModel"
VARIANTS = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "add_cross_attention": (False,),
    "scale_attn_by_inverse_layer_idx": (False,), "scale_attn_weights": (True,),
    "tie_word_embeddings": (True,),
}
"""Keys that change the mathematics, with the values this pack computes, the default first."""


@frozen
class Gpt2Config:
    """Dimensions; names as in Hugging Face configs."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    layer_norm_epsilon: float
    n_inner: int = Factory(lambda self: 4 * self.n_embd, takes_self=True)


def claim(model: ModelDescription) -> Claim | None:
    """Exactly this architecture."""
    claimed = ARCHITECTURE in model.architectures
    return Claim(50, f"architecture {ARCHITECTURE}") if claimed else None


def configure(model: ModelDescription) -> Gpt2Config:
    """The config of a model; raises `ArtifactError` naming what is missing, odd or not computed."""
    keys = {key: value for key, value in model.config.items() if value is not None}
    for key, computed in VARIANTS.items():
        if (found := keys.get(key, computed[0])) not in computed:
            why = f"{key} is {found!r}; the pack computes {computed[0]!r}"
            raise ArtifactError("this variant of GPT-2 is not supported", why=why)
    return read_config(Gpt2Config, keys, "GPT-2")


def component(config: Gpt2Config) -> dict[str, object]:
    """The config that an artifact keeps; `configure` reads it back."""
    return {"architectures": [ARCHITECTURE], **asdict(config)}


def tiny() -> ModelDescription:
    """The smallest model that has every part; 272 ids suit the tokenizer of the conformance kit."""
    text = component(Gpt2Config(272, 512, 64, 2, 4, 1e-5, n_inner=96))
    return ModelDescription("artifact", (ARCHITECTURE,), text, {"text": text})
