"""The options of the server: sections of a TOML file, each key a flag, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from attrs import Attribute, asdict, field, fields, frozen
from attrs.validators import ge, gt, in_, min_len, optional

from ninfer_core.api import (
    ConfigError,
    PromptOptions,
    ReasoningEffort,
    RequestError,
    SamplingParams,
)
from ninfer_core.cli.console import LOG_LEVELS
from ninfer_core.config.structure import read_toml, structure

_SECONDS = gt(0)


def option(
    default: Any, text: str, *, flag: str = "", check: Any = None, metavar: str = ""
) -> Any:
    """A key of a section.

    :param text: what it is, for ``--help`` and printed configurations.
    :param flag: without dashes; else the key's name. :param check: attrs validator of a value.
    """
    if check is not None and default is None:
        check = optional(check)
    metadata = {"text": text, "flag": flag, "metavar": metavar}
    return field(default=default, validator=check, metadata=metadata)


@frozen
class ModelOptions:
    """What is served."""

    path: str | None = option(None, ".ninfer file, or name of an embedded model", flag="model")
    name: str | None = option(None, "what clients call it (default: its own name)",
                              flag="model-name", check=min_len(1))
    pack: str | None = option(None, "model pack (default: the highest claim)")
    vision: bool = option(False, "read images and videos, too")


@frozen
class ServerOptions:
    """Where and how it is reached."""

    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 is everywhere")
    port: int = option(8080, "port to listen at; 0 takes a free one", check=in_(range(1 << 16)))
    cors_origins: tuple[str, ...] = option(
        (), "pages that may call, such as http://localhost:3000, or *", flag="cors-origin",
        metavar="ORIGIN")
    max_body_mib: int = option(384, "largest body of a request, in MiB", check=ge(1))
    heartbeat_s: float = option(5.0, "seconds of silence until a stream sends a sign of life",
                                check=_SECONDS)
    drain_s: float = option(30.0, "seconds that running requests have when the server stops",
                            check=ge(0))


@frozen
class ProfileOptions:
    """The machine."""

    name: str | None = option(None, "hardware profile (default: the best that fits)",
                              flag="profile")
    threads: int | None = option(None, "CPU threads (default: the profile's)")
    kv_dtype: str | None = option(None, "storage of the KV cache (default: the profile's)")
    prefill_chunk: int = option(512, "prompt tokens a step, a multiple of 64")
    tables_on_device: bool = option(False, "hold n-gram tables in the device's memory")
    eager: bool = option(False, "launch a GPU's kernels one by one instead of as graphs")
    kernels: Mapping[str, str] = field(factory=dict, metadata={
        "text": "op = kernel to use for it", "flag": "kernel", "metavar": "OP=NAME"})


@frozen
class LimitOptions:
    """How much at once, and how long."""

    max_context: int | None = option(None, "most tokens of a request, prompt and output "
                                     "(default: 2048)")
    max_concurrency: int = option(1, "requests that run at once, 1 to 8")
    context_capacity: int | Literal["auto"] | None = option(
        None, "byte pool of all requests and kept states; auto takes what the machine has left",
        metavar="BYTES")
    max_queue: int = option(64, "requests that may wait")
    queue_timeout_s: float | None = option(None, "longest wait, in seconds (default: none)",
                                           check=_SECONDS)
    prepare_timeout_s: float = option(30.0, "longest preparation of a prompt, in seconds",
                                      check=_SECONDS)
    deadline_s: float | None = option(None, "longest time of a request, in seconds "
                                      "(default: none)", check=_SECONDS)
    max_tokens: int | None = option(None, "tokens of an answer whose request does not say "
                                    "(default: all that fit)", check=ge(1))


@frozen
class SpeculationOptions:
    """Drafts."""

    name: str | None = option(None, "speculator, such as mtp or ngram", flag="spec")
    draft_tokens: int | None = option(None, "most drafts of one round (default: 3)")
    lm_head_draft: bool = option(False, "draft over the artifact's shortlist of tokens")


@frozen
class SamplingOptions:
    """How tokens are drawn if a request does not say (default: as the model's makers do)."""

    temperature: float | None = option(None, "0 to 2; 0 is greedy")
    top_k: int | None = option(None, "keep the N likeliest; 0 keeps all")
    top_p: float | None = option(None, "nucleus mass, 0 to 1")
    min_p: float | None = option(None, "least share of the likeliest's probability, 0 to 1")
    presence_penalty: float | None = option(None, "-2 to 2, per token seen")
    frequency_penalty: float | None = option(None, "-2 to 2, per occurrence")
    repetition_penalty: float | None = option(None, "above 0; over prompt and answer")
    seed: int | None = option(None, "key of the draws (default: another one each time)")

    def __attrs_post_init__(self) -> None:
        try:
            SamplingParams(**self.given)
        except RequestError as error:
            raise ValueError(f"{error.what}: {error.why}") from error

    @property
    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@frozen
class ServingOptions:
    """What requests get that do not say."""

    thinking: bool | None = option(None, "reason before answering (default: the model's)")
    reasoning_effort: str | None = option(
        None, "how much (default: the model's)", check=in_(get_args(ReasoningEffort)))
    thinking_budget: int | None = option(None, "most tokens of reasoning (default: no limit)",
                                         check=ge(1))
    preserve_thinking: bool | None = option(
        None, "keep reasoning of earlier turns in prompts (default: the model's)")
    constraints: str | None = option(None, "engine of grammars (default: the only one there is)")
    prefix_cache: bool = option(True, "keep states, so that later requests go on from them")
    max_stored_responses: int = option(1024, "responses that clients may go on from", check=ge(0))
    max_stored_mib: int = option(256, "memory for them, in MiB", check=ge(0))


@frozen
class AuthOptions:
    """Who may ask."""

    api_keys: tuple[str, ...] = option((), "of which a request needs one; none for everybody",
                                       flag="api-key", metavar="KEY")
    api_keys_file: str | None = option(None, "file with a key in each line", metavar="FILE")


@frozen
class LogOptions:
    """What is said."""

    level: str = option("info", "what stderr gets", flag="log-level", check=in_([*LOG_LEVELS]))
    requests: str | None = option(None, "file that gets a line of JSON for each request, without "
                                  "its texts", flag="request-log", metavar="FILE")


@frozen
class TierOptions:
    """Where kept states go from the pool."""

    host_capacity: int | None = option(None, "bytes of host memory (default: none)")
    disk_cache: str | None = option(None, "folder for states that outlive the server",
                                    metavar="FOLDER")
    disk_capacity: int = option(16 << 30, "most bytes of that")
    state_tier: str | None = option(None, "who keeps them there (default: the only one installed)",
                                    metavar="NAME")


@frozen
class PluginOptions:
    """Which plugins take part."""

    load: tuple[str, ...] = option((), "modules of plugins that are not installed",
                                   flag="plugin", metavar="MODULE")
    block: tuple[str, ...] = option((), "plugins to leave out", flag="no-plugin",
                                    metavar="NAME")


@frozen
class ServeConfig:
    """All options of the server; each field is a section."""

    model: ModelOptions = ModelOptions()
    server: ServerOptions = ServerOptions()
    profile: ProfileOptions = ProfileOptions()
    limits: LimitOptions = LimitOptions()
    speculation: SpeculationOptions = SpeculationOptions()
    sampling: SamplingOptions = SamplingOptions()
    serving: ServingOptions = ServingOptions()
    auth: AuthOptions = AuthOptions()
    log: LogOptions = LogOptions()
    tiers: TierOptions = TierOptions()
    plugins: PluginOptions = PluginOptions()


def sections() -> dict[str, tuple[type, Sequence[Attribute[Any]]]]:
    """Name of each section, its class and its keys."""
    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(ServeConfig)}
    return {name: (kind, fields(kind)) for name, kind in kinds.items()}


def load(path: Path | None, flags: Mapping[str, Mapping[str, Any]]) -> ServeConfig:
    """The options of a file, if there is one, under those of the command line.

    :param flags: by section and key.
    :raises ConfigError: naming every option that is unknown, mistyped or out of range.
    """
    values = read_toml(path) if path else {}
    for section, given in flags.items():
        if given:
            inner = values.get(section, {})
            values[section] = {**inner, **given} if isinstance(inner, dict) else inner
    return structure(values, ServeConfig, str(path or ""))


def launch_options(config: ServeConfig) -> dict[str, Any]:
    """The options of the engine, by the names of `LaunchConfig`."""
    model, profile, limits, tiers = config.model, config.profile, config.limits, config.tiers
    return {
        "model": model.path, "pack": model.pack, "profile": profile.name,
        "threads": profile.threads, "kv_dtype": profile.kv_dtype,
        "prefill_chunk": profile.prefill_chunk, "kernels": profile.kernels,
        "tables_on_device": profile.tables_on_device, "eager": profile.eager,
        "max_context": limits.max_context, "max_concurrency": limits.max_concurrency,
        "context_capacity": limits.context_capacity, "max_queue": limits.max_queue,
        "queue_timeout_s": limits.queue_timeout_s, "spec": config.speculation.name,
        "draft_tokens": config.speculation.draft_tokens,
        "lm_head_draft": config.speculation.lm_head_draft,
        "constraints": config.serving.constraints, "prefix_cache": config.serving.prefix_cache,
        "host_capacity": tiers.host_capacity, "disk_cache": tiers.disk_cache,
        "disk_capacity": tiers.disk_capacity, "state_tier": tiers.state_tier,
    }


def prompt_options(config: ServeConfig) -> PromptOptions:
    """What chat templates are asked if a request does not say."""
    serving = config.serving
    effort: Any = serving.reasoning_effort
    return PromptOptions(serving.thinking, effort, serving.preserve_thinking)


def api_keys(config: ServeConfig) -> tuple[str, ...]:
    """Those of the configuration and those of its file; raises `ConfigError` for one that is none.
    """
    keys, file = list(config.auth.api_keys), config.auth.api_keys_file
    if file is not None:
        try:
            lines = Path(file).expanduser().read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            what = "the API keys cannot be read"
            raise ConfigError(what, where=file, why=str(error)) from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise ConfigError("the file has no API keys", where=file)
        keys += found
    if any(not key or not key.isascii() or not key.isprintable() for key in keys):
        raise ConfigError("an API key is empty or has other than printable ASCII characters")
    return tuple(keys)


