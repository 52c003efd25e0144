"""The toy pack: a tiny architecture with every kind of sequence state, for tests only."""

from ninfer_core.api import ModelPackSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_model_packs():
    return [
        ModelPackSpec(
            name="toy",
            pack="ninfer_pack_toy.pack:ToyPack",
            claim="ninfer_pack_toy.config:claim",
        )
    ]
