"""The stable surface of NInfer for plugins. Importing it imports no torch.

Everything here is covered by `API_VERSION`; everything elsewhere in ``ninfer_core`` that a pack or
profile may use is named in docs/plugin-api.md.
"""

from ninfer_core.api.errors import (
    AmbiguityError,
    ArtifactError,
    CapacityError,
    ConfigError,
    NInferError,
    PluginError,
    RequestError,
    UnsupportedError,
)
from ninfer_core.api.lazy import LazyRef
from ninfer_core.api.markers import hookimpl, hookspec
from ninfer_core.api.protocols import (
    BuildContext,
    CheckpointSource,
    Converter,
    FormatCodec,
    Frontend,
    HardwareProfile,
    ImportedParameter,
    ImportPlan,
    KVCodec,
    Model,
    ModelPack,
    OutputParser,
    OutputPart,
    PlaneInfo,
    PreparedPrompt,
    Progress,
    SourceTensor,
    Speculator,
    StorageChoice,
    StorageLayout,
    Tokenizer,
)
from ninfer_core.api.specs import (
    AffineGroup,
    Claim,
    CommandSpec,
    ConverterSpec,
    Detection,
    EmbeddedModel,
    FormatSpec,
    HardwareProfileSpec,
    KernelRequest,
    KernelSpec,
    KVCodecSpec,
    LayoutSpec,
    MachineFigures,
    ModelDescription,
    ModelPackSpec,
    PagedStateSpec,
    ParameterSpec,
    SamplingParams,
    SlotStateSpec,
    SpeculatorSpec,
    StatePlane,
    StateSpec,
    WeightInfo,
)
from ninfer_core.api.version import API_VERSION, ApiVersion

__all__ = [
    "API_VERSION", "AffineGroup", "AmbiguityError", "ApiVersion", "ArtifactError",
    "BuildContext", "CapacityError", "CheckpointSource", "Claim", "CommandSpec", "ConfigError",
    "Converter", "ConverterSpec", "Detection", "EmbeddedModel", "FormatCodec", "FormatSpec",
    "Frontend", "HardwareProfile", "HardwareProfileSpec", "ImportPlan", "ImportedParameter",
    "KVCodec", "KVCodecSpec", "KernelRequest", "KernelSpec", "LayoutSpec", "LazyRef",
    "MachineFigures", "Model", "ModelDescription", "ModelPack", "ModelPackSpec", "NInferError",
    "OutputParser", "OutputPart", "PagedStateSpec", "ParameterSpec", "PlaneInfo", "PluginError",
    "PreparedPrompt", "Progress", "RequestError", "SamplingParams", "SlotStateSpec",
    "SourceTensor", "Speculator", "SpeculatorSpec", "StatePlane", "StateSpec", "StorageChoice",
    "StorageLayout", "Tokenizer", "UnsupportedError", "WeightInfo", "hookimpl", "hookspec",
]
