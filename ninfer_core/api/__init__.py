"""The stable surface of NInfer for plugins. Importing it imports no torch.

Everything here is covered by `API_VERSION`; everything elsewhere in ``ninfer_core`` that a pack or
profile may use is named in docs/plugin-api.md.
"""

from ninfer_core.api.constraints import (
    CallRules,
    ConstraintCompiler,
    ConstraintContext,
    Grammar,
    NewConstraint,
    TokenConstraint,
)
from ninfer_core.api.errors import (
    AmbiguityError,
    ArtifactError,
    CapacityError,
    ConfigError,
    ContextLengthError,
    NInferError,
    PluginError,
    QueueTimeoutError,
    RequestError,
    UnsupportedError,
)
from ninfer_core.api.frontend import (
    AnswerPart,
    CallSyntax,
    Frontend,
    OutputParser,
    OutputPart,
    PreparedPrompt,
    PromptOptions,
    ReasoningEffort,
    ReasoningTokens,
    Tokenizer,
    ToolCall,
)
from ninfer_core.api.lazy import LazyRef
from ninfer_core.api.markers import hookimpl, hookspec
from ninfer_core.api.ops import KernelRequest, KernelSpec, OpContract, WeightInfo
from ninfer_core.api.protocols import (
    BuildContext,
    Converter,
    FormatCodec,
    HardwareProfile,
    KVCodec,
    Model,
    ModelPack,
    NextTokenPredictor,
    PlaneInfo,
    PredictingModel,
    Progress,
    StorageLayout,
)
from ninfer_core.api.sources import (
    CheckpointSource,
    ImportedParameter,
    ImportPlan,
    SourceTensor,
    StorageChoice,
)
from ninfer_core.api.specs import (
    AffineGroup,
    Claim,
    CommandSpec,
    ConstraintSpec,
    ConverterSpec,
    Detection,
    EmbeddedModel,
    FormatSpec,
    HardwareProfileSpec,
    KernelWork,
    KVCodecSpec,
    LayoutSpec,
    MachineFigures,
    ModelCard,
    ModelDescription,
    ModelPackSpec,
    PagedStateSpec,
    ParameterSpec,
    ProtocolSpec,
    SamplingParams,
    SlotStateSpec,
    SpeculatorSpec,
    StatePlane,
    StateSpec,
    StateTierSpec,
)
from ninfer_core.api.speculation import (
    Advance,
    AheadSpeculator,
    Draft,
    DraftRequest,
    Speculator,
    SpeculatorContext,
)
from ninfer_core.api.tiers import (
    Scope,
    StateTier,
    StateTierContext,
    StoredState,
    Tier,
    is_scope,
)
from ninfer_core.api.version import API_VERSION, ApiVersion

__all__ = [
    "API_VERSION", "Advance", "AffineGroup", "AheadSpeculator", "AmbiguityError", "AnswerPart",
    "ApiVersion",
    "ArtifactError", "BuildContext", "CallRules", "CallSyntax", "CapacityError", "CheckpointSource",
    "Claim", "CommandSpec", "ConfigError", "ConstraintCompiler", "ConstraintContext",
    "ConstraintSpec", "ContextLengthError", "Converter", "ConverterSpec", "Detection", "Draft",
    "DraftRequest", "EmbeddedModel", "FormatCodec", "FormatSpec", "Frontend", "Grammar",
    "HardwareProfile", "HardwareProfileSpec", "ImportPlan", "ImportedParameter", "KVCodec",
    "KVCodecSpec", "KernelRequest", "KernelSpec", "KernelWork", "LayoutSpec", "LazyRef",
    "MachineFigures", "Model", "ModelCard", "ModelDescription", "ModelPack", "ModelPackSpec",
    "NInferError", "NewConstraint", "NextTokenPredictor", "OpContract", "OutputParser",
    "OutputPart", "PagedStateSpec", "ParameterSpec", "PlaneInfo", "PluginError", "PredictingModel",
    "PreparedPrompt", "Progress", "PromptOptions", "ProtocolSpec", "QueueTimeoutError",
    "ReasoningEffort", "ReasoningTokens", "RequestError", "SamplingParams", "Scope",
    "SlotStateSpec", "SourceTensor", "Speculator", "SpeculatorContext", "SpeculatorSpec",
    "StatePlane", "StateSpec", "StateTier", "StateTierContext", "StateTierSpec", "StorageChoice",
    "StorageLayout", "StoredState", "Tier", "TokenConstraint", "Tokenizer", "ToolCall",
    "UnsupportedError", "WeightInfo", "hookimpl", "hookspec", "is_scope",
]
