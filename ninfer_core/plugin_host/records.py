"""What the host knows of plugins: where each came from, what it registered, what became of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

from attrs import define, evolve, field, frozen

from ninfer_core import api

log = logging.getLogger(__name__)
S = TypeVar("S")


@frozen
class Provenance:
    """Which distribution a spec came from, by which entry point."""

    distribution: str
    version: str
    entry_point: str
    module: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.entry_point} = {self.module})"


@frozen
class Registered(Generic[S]):
    """A spec and where it came from."""

    spec: S
    provenance: Provenance


@frozen
class PluginRecord:
    """One plugin and its fate.

    :ivar group: of its entry point; ``-p`` or ``core`` for what has none.
    :ivar specs: what it registered, by field of the :class:`Registry`.
    :ivar asked: asked for by name: it is never quarantined, its failure stops the start.
    :ivar error: why it is quarantined.
    """

    name: str
    group: str
    distribution: str
    version: str
    module: str
    state: Literal["found", "active", "quarantined", "blocked", "not-selected"] = "found"
    reason: str = ""
    specs: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    asked: bool = False
    error: api.NInferError | None = field(default=None, eq=False)

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.distribution, self.version, self.name, self.module)

    def goes_by(self, *names: str) -> bool:
        """Whether its entry point, distribution or module is among the names."""
        return not {self.name, self.distribution, self.module}.isdisjoint(names)


@frozen
class Registry:
    """Every usable spec by name."""

    packs: Mapping[str, Registered[api.ModelPackSpec]]
    profiles: Mapping[str, Registered[api.HardwareProfileSpec]]
    ops: Mapping[str, Registered[api.OpContract]]
    kernels: Mapping[str, Registered[api.KernelSpec]]
    formats: Mapping[str, Registered[api.FormatSpec]]
    layouts: Mapping[str, Registered[api.LayoutSpec]]
    kv_codecs: Mapping[str, Registered[api.KVCodecSpec]]
    speculators: Mapping[str, Registered[api.SpeculatorSpec]]
    converters: Mapping[str, Registered[api.ConverterSpec]]
    commands: Mapping[str, Registered[api.CommandSpec]]
    constraints: Mapping[str, Registered[api.ConstraintSpec]]
    state_tiers: Mapping[str, Registered[api.StateTierSpec]]
    protocols: Mapping[str, Registered[api.ProtocolSpec]]

    @property
    def contracts(self) -> Mapping[str, api.OpContract]:
        return {name: registered.spec for name, registered in self.ops.items()}


@define(eq=False)
class PluginReport:
    """All plugins found; what the active ones registered."""

    records: tuple[PluginRecord, ...]

    @property
    def registry(self) -> Registry:
        kinds: dict[str, dict[str, Any]] = {each: {} for each in Registry.__annotations__}
        for record in self.records:
            for kind, specs in record.specs.items() if record.state == "active" else ():
                kinds[kind].update((s.name, Registered(s, record.provenance)) for s in specs)
        return Registry(**kinds)

    def find(self, provenance: Provenance) -> PluginRecord:
        """The plugin that a registered spec came from."""
        return next(record for record in self.records if record.provenance == provenance)

    def change(self, record: PluginRecord, **changes: Any) -> None:
        changed = evolve(record, **changes)
        self.records = tuple(changed if each is record else each for each in self.records)

    def quarantine(self, record: PluginRecord, error: api.NInferError) -> None:
        """Take a plugin out of the run with a warning; raises ``error`` if it was asked for."""
        if record.asked:
            raise error
        log.warning("plugin %s is quarantined: %s", record.name, error)
        self.change(record, state="quarantined", reason=str(error), error=error)
