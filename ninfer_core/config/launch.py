"""Launch options: from a TOML file and overrides to one checked record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, gt, in_, optional

from ninfer_core.config.structure import Capacity, read_toml, structure


@frozen
class LaunchConfig:
    """How to set up a model; None leaves the choice to `resolve`.

    :ivar model: path of a `.ninfer` entry file, or the name of an embedded model.
    :ivar pack: model pack; else the highest claim.
    :ivar profile: hardware profile; else the highest detection.
    :ivar max_context: most tokens of one sequence, prompt and output; else 2048, or fewer if the
        model is for fewer.
    :ivar max_concurrency: sequences that run at once.
    :ivar context_capacity: bytes of the pool of pages, of sequences and of states that are kept, or
        ``auto``: what the machine has left; else what all sequences need at most, and a state more.
    :ivar prefix_cache: whether states are kept, so that later requests go on from them.
    :ivar host_capacity: bytes of host memory for states that leave the pool; else none.
    :ivar disk_cache: folder for states that outlive the process; else none.
    :ivar disk_capacity: most bytes of that.
    :ivar state_tier: who keeps them there; else the only one there is.
    :ivar max_queue: requests that may wait. :ivar queue_timeout_s: how long at most, in seconds.
    :ivar kv_dtype: KV codec; else the profile's.
    :ivar prefill_chunk: prompt tokens of one step, a multiple of the page (64 tokens).
    :ivar spec: speculator. :ivar draft_tokens: most drafts of one round of it; else 3.
    :ivar lm_head_draft: draft with the artifact's draft head instead of the model's own.
    :ivar constraints: engine that holds answers to grammars; else the only one there is.
    :ivar kernels: op -> the kernel to use for it.
    :ivar threads: CPU threads; else the profile's.
    :ivar tables_on_device: whether tables that a pack leaves in host memory go to the device, too.
    :ivar eager: whether a GPU's steps are launched kernel by kernel instead of as graphs.
    """

    model: str | None = None
    pack: str | None = None
    profile: str | None = None
    max_context: int | None = field(default=None, validator=optional(ge(1)))
    max_concurrency: int = field(default=1, validator=in_(range(1, 9)))
    context_capacity: Capacity = None
    prefix_cache: bool = True
    host_capacity: int | None = field(default=None, validator=optional(ge(1)))
    disk_cache: str | None = None
    disk_capacity: int = field(default=16 << 30, validator=ge(1))
    state_tier: str | None = None
    max_queue: int = field(default=64, validator=ge(0))
    queue_timeout_s: float | None = field(default=None, validator=optional(gt(0)))
    kv_dtype: str | None = None
    prefill_chunk: int = field(default=512, validator=ge(64))
    spec: str | None = None
    draft_tokens: int | None = field(default=None, validator=optional(in_(range(1, 16))))
    lm_head_draft: bool = False
    constraints: str | None = None
    kernels: Mapping[str, str] = field(factory=dict)
    threads: int | None = field(default=None, validator=optional(in_(range(1, 1025))))
    tables_on_device: bool = False
    eager: bool = False

    def __attrs_post_init__(self) -> None:
        if self.prefill_chunk % 64:
            raise ValueError(f"'prefill_chunk' must be a multiple of 64: {self.prefill_chunk}")
        for needed, *options in (
            ("spec", "draft_tokens", "lm_head_draft"),
            ("prefix_cache", "host_capacity", "disk_cache"),
            ("disk_cache", "state_tier"),
        ):
            for option in options:
                if getattr(self, option) and not getattr(self, needed):
                    raise ValueError(f"{option!r} needs {needed!r}")

    @property
    def max_verify_rows(self) -> int:
        """Tokens of a sequence in one decode step: one and its drafts."""
        return 1 + (self.draft_tokens or 0)

    @property
    def step_tokens(self) -> int:
        """Most tokens of one step."""
        return max(self.prefill_chunk, self.max_concurrency * self.max_verify_rows)


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> LaunchConfig:
    """The options of a TOML file, if any, under ``overrides`` that are not None.

    :raises ConfigError: naming every option that is unknown, mistyped or out of range.
    """
    values = {} if path is None else read_toml(path)
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping):
            values[name] = {**values[name], **value}
        elif value is not None:
            values[name] = value
    return structure(values, LaunchConfig, str(path or ""))
